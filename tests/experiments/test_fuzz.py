"""Inputs drawn at random: never a traceback, and nothing is changed without a word."""

import os
import shutil
import socket
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from experiments.invocation import Invocation
from tests.apps.cases import IMAGES, files_of, merge
from tests.experiments.cases import told
from tests.experiments.stages.cases import scores

CHANGES: dict[str, Any] = {
    "federation": {"rounds": 1, "clients": 2},
    "attacks": [{"name": "inverting", "steps": 2}, {"name": "prior_only"}],
}
BASE = merge(IMAGES, CHANGES)
TEXT = tomli_w.dumps(BASE)
_COMMANDS = ["run", "attack", "score", "report", "doctor"]
_WORDS = ["", "none", "lenet", "shapes", "fedavg", "train[:9]", "../x", "é\0", "a b", "=", "round"]
_NUMBERS = [-1, 0, 1, 2, 3, 2**31, 2**62, 2**64, -(2**63)]
_FRAGMENTS = [
    *('"', "'", "[", "]", "{", "}", "=", ".", ",", "#", "\n", "\r", "\0", "é", "-", "_", "9" * 30),
    *("nan", "-inf", "1e400", "true", "0x1f", "1979-05-27", "07:32:00", '"""', "[[attacks]]\n"),
    *("[sweep]\n", "{ name = 'dlg' }", "seeds = [0, 1]\n", "level = 'L4'\n", "[" * 200, "a." * 200),
]
SCALARS = st.one_of(
    st.sampled_from(_NUMBERS),
    st.floats(),
    st.booleans(),
    st.sampled_from(_WORDS),
    st.text(st.characters(codec="utf-8"), max_size=8),
    st.dates(),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.sampled_from(["name", "steps", "x"]), inner, max_size=3),
    ),
    max_leaves=5,
)


LIKE = {bool: st.booleans(), int: st.integers(0, 4), float: st.floats(0, 1)}
"""Values that an option of that type may well take."""


def paths(node: object, at: str = "") -> Iterator[tuple[str, object]]:
    """Every option of the resolved experiment, by its path; lists by their positions."""
    named = dict(enumerate(node)) if isinstance(node, list) else node
    for key, inner in named.items() if isinstance(named, dict) else ():
        yield (where := f"{at}.{key}".lstrip(".")), inner
        yield from paths(inner, where)


def resolved() -> list[tuple[str, object]]:
    from experiments.plan.config import parse_experiment

    known = paths(parse_experiment(BASE).model_dump(mode="json"))
    return [*known, *((path, "") for path in ("", "x", "task.x", "a.b.c"))]


@st.composite
def sets(draw: st.DrawFn) -> str:
    """An argument of ``--set``."""
    key, current = draw(st.sampled_from(resolved()))
    value = draw(LIKE.get(type(current), VALUES) | VALUES)
    if draw(st.booleans()):
        return f"{key}={value}"
    return tomli_w.dumps({"value": value}).strip().replace("value = ", f"{key}=", 1)


@st.composite
def documents(draw: st.DrawFn) -> str:
    """The experiment's file with some of its text replaced, removed or written twice."""
    text = TEXT
    for _ in range(draw(st.integers(1, 3))):
        start = draw(st.integers(0, len(text)))
        end = min(len(text), start + draw(st.sampled_from([0, 0, 1, 3, 20])))
        text = text[:start] + draw(st.sampled_from(["", text[start:end], *_FRAGMENTS])) + text[end:]
    return text


def one_line(said: str) -> bool:
    """A line for each mistake."""
    lines = said.split("\n")
    return lines.pop() == "" and all(line.startswith("fedsim: ") for line in lines) and bool(lines)


def keeps(asked: object, got: object) -> bool:
    """Whether all that was asked for is what will be done; an integer may stand for a float."""
    if isinstance(asked, dict):
        return isinstance(got, dict) and all(
            k in got and keeps(v, got[k]) for k, v in asked.items()
        )
    if isinstance(asked, list):
        same = isinstance(got, list) and len(got) == len(asked)
        return same and all(map(keeps, asked, got))  # type: ignore[call-overload]
    return asked == got and isinstance(asked, bool) == isinstance(got, bool)


def check_plan(file: Path, change: list[str]) -> str:
    """Show the experiment; what is accepted is what was written."""
    code, said = told(["show", str(file), *(f"--set={edit}" for edit in change)])
    if code:
        assert code == 2
        assert one_line(said), said
        return "refused"
    table = tomllib.loads(file.read_text("utf-8"))
    for edit in change:
        key, _, written = edit.partition("=")
        try:
            value = tomllib.loads(f"value = {written}")["value"]
        except tomllib.TOMLDecodeError:
            value = written  # a word without quotes
        node: Any = table
        *parents, last = key.split(".")
        for part in parents:
            node = node[int(part)] if isinstance(node, list) else node.setdefault(part, {})
        node[int(last) if isinstance(node, list) else last] = value
    plan = Invocation(str(file), change).plan().model_dump(mode="json")
    assert keeps(table, plan["experiments"][0] if "suite" not in table else plan)
    return "accepted"


def options(count: int) -> settings:
    return settings(
        max_examples=count,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.delenv("FEDSIM_HUB", raising=False)
    monkeypatch.setattr(sys, "argv", sys.argv)
    monkeypatch.chdir(tmp_path)


COUNTS = [40, pytest.param(2000, marks=pytest.mark.slow)]


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize(
    "inputs",
    [
        st.tuples(st.just(TEXT), st.lists(sets(), min_size=1, max_size=2)),
        st.tuples(documents(), st.just([])),
    ],
    ids=["override", "file"],
)
def test_any_input(inputs: st.SearchStrategy[Any], count: int, tmp_path: Path) -> None:
    file, seen = tmp_path / "any.toml", Counter[str]()

    @options(count)
    @given(inputs)
    def check(experiment: tuple[str, list[str]]) -> None:
        file.write_bytes(experiment[0].encode())
        seen[check_plan(file, experiment[1])] += 1

    check()
    print(dict(seen))
    assert seen["refused"] > seen["accepted"] > 0


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finished")
    (folder / "base.toml").write_text(TEXT)
    assert told(["run", str(folder / "base.toml"), "--out", str(folder / "run"), "--quiet"])[0] == 0
    return folder / "run"


def results(run: Path, command: str) -> dict[str, Any]:
    """What the command makes and a reader relies on; a job that is run again takes other time."""
    files = files_of(run)
    kept = {"score": (".parquet",), "report": (".csv", "summary.json"), "doctor": ()}
    guesses = {name for name in files if "/guesses/" in name and name.endswith(".safetensors")}
    names = {name for name in files if name.endswith(kept[command])} if command in kept else guesses
    found: dict[str, Any] = {name: files[name] for name in names}
    return found | ({"scores": scores(run)} if command == "run" else {})


_NO_FILES = ["link", "pipe", "holes"]


@st.composite
def faults(draw: st.DrawFn, names: list[str]) -> tuple[str, str, int, str]:
    """A file, what happens to it, where, and the file that takes its place."""
    kinds = ["flip", "cut", "empty", "delete", "folder", "append", "other", *_NO_FILES, "digit"]
    place = draw(st.integers(0, 2**20))
    name = draw(st.sampled_from(names))
    alike = [one for one in names if Path(one).suffix == Path(name).suffix]
    return name, draw(st.sampled_from(kinds)), place, draw(st.sampled_from(alike))


def spoil(run: Path, name: str, kind: str, place: int, other: str) -> None:
    path = run / name
    data = bytearray(path.read_bytes())
    at = place % max(1, len(data))
    if kind == "flip" and data:
        data[at] ^= 1 << place % 8
    elif kind == "cut":
        del data[at:]
    elif kind == "append":
        data += bytes([place % 256] * (1 + place % 9))
    elif kind == "other":
        data = bytearray((run / other).read_bytes())
    elif kind == "digit" and (digits := [i for i, byte in enumerate(data) if 48 <= byte < 58]):
        at = digits[place % len(digits)]
        data[at] = 48 + (data[at] - 47) % 10
    path.unlink()
    if kind == "folder":
        path.mkdir()
    elif kind == "link":
        path.symlink_to(run / other)
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "holes":
        with path.open("wb") as file:
            file.truncate(1 << 42)
    elif kind != "delete":
        path.write_bytes(b"" if kind == "empty" else data)


@pytest.mark.slow
def test_any_spoilt_file(finished: Path, tmp_path: Path) -> None:
    """Named in one line, or made again as it was."""
    names, seen = sorted(files_of(finished)), Counter[str]()
    expected = {command: results(finished, command) for command in _COMMANDS}
    run = tmp_path / "run"

    @options(1000)
    @given(faults(names), st.sampled_from(_COMMANDS))
    def check(fault: tuple[str, str, int, str], command: str) -> None:
        shutil.rmtree(run, ignore_errors=True)
        shutil.copytree(finished, run)
        spoil(run, *fault)
        code, said = told([command, str(run), *(["--quiet"] if command != "doctor" else [])])
        if code == 2:
            assert one_line(said), said
            seen["refused"] += 1
            return
        assert fault[1] not in _NO_FILES, fault
        assert code == 0 or command == "doctor", said
        assert results(run, command) == expected[command], fault
        seen["unharmed"] += 1

    check()
    print(f"files: {dict(seen)}")
    assert len(seen) == 2
