"""The lab is solved by who follows its page, and not by who guesses."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from experiments.extras.arena.lab import Lab

Said = Callable[..., tuple[object, str, str]]
PAGE = Path(__file__).parents[4] / "docs" / "lab.md"
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


@pytest.fixture(scope="module")
def room(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the five sealed tracks in ``lab``."""
    root = tmp_path_factory.mktemp("room")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("secrets.randbits", lambda bits: (1 << bits) // 3)
        Lab(root / "lab").start()
    return root


def solutions() -> dict[int, list[tuple[str, str]]]:
    """Puzzle -> the language and text of each block below its solution."""
    parts = re.split(r"^### (\d)\..*$", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {
        int(number): BLOCK.findall(body)
        for number, body in zip(parts[1::2], parts[2::2], strict=True)
    }


def test_every_puzzle_has_a_solution_and_three_hints() -> None:
    lab = Lab(Path("lab"))
    assert sorted(solutions()) == [puzzle.number for puzzle in lab.puzzles] == [1, 2, 3, 4, 5]
    assert {len(puzzle.hints) for puzzle in lab.puzzles} == {3}


@pytest.mark.slow
@pytest.mark.parametrize("number", range(1, 6))
def test_a_puzzle_is_solved_by_following_the_page(
    number: int, room: Path, said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(room)
    checked = False
    for language, text in solutions()[number]:
        if language == "python":
            with contextlib.redirect_stdout(io.StringIO()) as printed:
                exec(compile(text, f"solution {number}", "exec"), {})
            answer = printed.getvalue().strip()
        for line in () if language else text.splitlines():
            code, out, error = said(*shlex.split(line)[1:])
            assert code == 0, (line, out, error)
            checked = checked or line.startswith("fedsim lab check")
    if not checked:
        code, out, _ = said("lab", "check", number, answer)
        assert (code, out.startswith("solved")) == (0, True), out


@pytest.mark.slow
def test_one_noisy_round_and_bags_of_words_do_not_do(
    room: Path, said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the second halves of the puzzles are about is needed: half a solution is not enough."""
    from fedsim.capture import CaptureStore

    monkeypatch.chdir(room)
    store = CaptureStore("lab/5/bundle/captures")
    first = [store.load(key).update()["fc.bias"] for key in store.keys() if key.round == 1]
    answer = ",".join(str(int(bias.argmin())) for bias in first)
    code, out, _ = said("lab", "check", 5, answer)
    assert (code, out.startswith("not yet")) == (1, True)
    said("submit", "lab/3/bundle", "bag", "--attack", "embedding_rows")
    code, out, _ = said("lab", "check", 3, "bag")
    assert (code, out.startswith("not yet: rougeL")) == (1, True)


def test_mistakes_are_one_line(tmp_path: Path, said: Said) -> None:
    for arguments, line in (
        (("show",), "name a puzzle, 1 to 5"),
        (("show", 9), "there is no puzzle 9"),
        (("hint", 1, 7), "levels are 1 to 3"),
        (("hint", 1, "a"), "levels are 1 to 3"),
        (("check", 1), "a level or an answer is missing"),
        (("check", 1, "1,2"), "Run fedsim lab start first"),
    ):
        code, _, error = said("lab", *arguments, "--folder", tmp_path)
        assert (code, line in error, error.count("\n")) == (2, True, 1), error
    assert said("lab", "list")[1].startswith("1  Whose class?\n2  How long?")
