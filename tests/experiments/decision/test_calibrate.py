"""``fedsim calibrate`` from the question to the files of its answer."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import tomli_w

from docs.pictures import THEMES, write_search
from experiments.cli import main
from experiments.decision.answer import Answer
from experiments.plan.config import load_plan
from experiments.plan.folder import STAGES, Run
from experiments.report.figures import INK
from fedsim.store.files import read_record
from tests.apps.cases import TEXT, merge
from tests.experiments.conftest import Said

PATIENCE = 900.0
HOLD = ("--hold", "rouge1=.6")


def write(folder: Path, **changes: object) -> Path:
    small: dict[str, Any] = {
        "federation": {"clients": 12, "rounds": 2, "client_rows": 1},
        "auxiliary": {"split": "public", "rows": 100},
        "capture": {"rounds": [1]},
        "defenses": [{"name": "gaussian_noise", "std": 0.1}],
        "attacks": [
            {"name": "embedding_rows"},
            {"name": "embedding_rows", "adaptive": True},
        ],
    }
    file = folder / "small.toml"
    file.write_text(tomli_w.dumps(merge(merge(TEXT, small), changes)))
    return file


def arguments(file: Path, out: Path) -> list[str]:
    return [
        "calibrate",
        str(file),
        *HOLD,
        "--lose",
        "accuracy=.9",
        "--depth",
        "2",
        "--group",
        "3",
        "--seeds",
        "4",
        "--out",
        str(out),
    ]


def command(file: Path, out: Path) -> list[str]:
    code = "from experiments.cli import main; main()"
    return [sys.executable, "-c", code, *arguments(file, out), "--quiet"]


@pytest.fixture(scope="module")
def calibrated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished calibration; tests leave it as it is."""
    folder = tmp_path_factory.mktemp("calibrated")
    out = folder / "run"
    command_line = ["fedsim", *arguments(write(folder), out), "--quiet"]
    with (
        (folder / "said").open("w") as said,
        redirect_stdout(said),
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setattr(sys, "argv", command_line)
        with pytest.raises(SystemExit, match=r"^0$"):
            main()
    return out


def test_the_answer(calibrated: Path) -> None:
    answer = read_record(calibrated / "calibration" / "answer.json", Answer)
    (family,) = answer.families
    assert answer.undefended.word == "leaks"
    assert family.option == "std"
    assert len(family.values) == 3
    assert family.outcome == "holds"
    at = family.at
    assert at is not None
    assert at.reached[0].high < 0.6
    assert all(trial.word != "holds" for trial in family.tried if trial.index < at.index)
    (cost,) = family.costs
    assert cost.limit == 0.9
    assert not cost.learned  # in two rounds
    assert cost.lost.n == 4  # as three tell nothing
    assert answer.chosen == 0
    assert 0 < answer.jobs <= answer.grid == 4 * 12 * 3


def test_what_is_said(calibrated: Path) -> None:
    said = (calibrated.parent / "said").read_text()
    assert "is the weakest that holds" in said
    assert "at a cost that cannot be told (of one training, in round 1)." in said
    assert "by a blind guess" in said
    assert "Attacked was round 1 of 2, by embedding_rows" in said
    assert "taken as public" in said
    page = (calibrated / "calibration" / "index.html").read_text()
    assert "<svg" in page
    assert "std=" in page


def test_its_picture_has_the_ink_of_each_theme(calibrated: Path, tmp_path: Path) -> None:
    for path, theme in zip(write_search(calibrated, tmp_path), THEMES.values(), strict=True):
        drawn = path.read_text(encoding="utf-8")
        assert theme.ink in drawn
        assert INK not in drawn
        assert ElementTree.fromstring(drawn).tag.endswith("svg")


def test_the_chosen_defense_is_an_experiment(calibrated: Path) -> None:
    answer = read_record(calibrated / "calibration" / "answer.json", Answer)
    (experiment,) = load_plan(str(calibrated / "calibration" / "chosen.toml")).experiments
    assert experiment.defenses == ({"name": "none"}, answer.families[0].defense)
    assert experiment.federation.rounds == 2


@pytest.mark.slow
def test_the_folder_is_a_run(calibrated: Path) -> None:
    from experiments.pipeline import execute

    run = Run.open(calibrated)
    assert all(cell.simulated for cell in run.cells)
    assert {cell.experiment.name for cell in run.cells} == {"small-text", "small-text-utility"}
    outcome = execute(run, STAGES, quiet=True)  # finishes the clients that were not needed
    assert not outcome.failed
    assert outcome.page is not None


@pytest.mark.slow
@pytest.mark.ray
def test_on_ray_the_answer_is_the_same(calibrated: Path, tmp_path: Path) -> None:
    """Clients let go of their CPUs before attacks ask for them, strength by strength."""
    file, run = write(tmp_path, federation={"engine": "ray"}), tmp_path / "run"
    subprocess.run(command(file, run), check=True, timeout=PATIENCE, capture_output=True)
    ours, theirs = (one / "calibration" / "answer.json" for one in (run, calibrated))
    assert ours.read_bytes() == theirs.read_bytes()


def kill_when(file: Path, run: Path, ready: Callable[[], bool]) -> None:
    process = subprocess.Popen(command(file, run), stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + PATIENCE
    while not ready():
        assert process.poll() is None, "the command ended before it could be killed"
        assert time.monotonic() < deadline, "the moment to kill never came"
        time.sleep(0.002)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()


@pytest.mark.slow
def test_killed_three_times_the_answer_is_the_same(calibrated: Path, tmp_path: Path) -> None:
    file, run = write(tmp_path), tmp_path / "run"

    def guesses(cells: str) -> int:
        return len(list(run.glob(f"{cells}/guesses/embedding_rows/*.json")))

    kill_when(file, run, lambda: guesses("*.none.*") >= 2)
    kill_when(file, run, lambda: guesses("*.gaussian_noise.*") >= 2)
    kill_when(file, run, lambda: any(run.glob("*-utility.*/cell.json")))
    assert not (run / "calibration" / "answer.json").exists()
    subprocess.run(command(file, run), check=True, timeout=PATIENCE, capture_output=True)
    for name in ("answer.json", "chosen.toml", "index.html"):
        ours, theirs = (one / "calibration" / name for one in (run, calibrated))
        assert ours.read_bytes() == theirs.read_bytes()


WRONG = [
    ((), "nothing is to be held"),
    (("--hold", "rogue1=.2"), "Did you mean 'rouge1'?"),
    (("--hold", "rouge1"), "expected name=number"),
    (("--hold", "rouge1=2"), "must lie between 0 and 1"),
    (("--hold", "psnr=18"), "measures images"),
    ((*HOLD, *HOLD), "stands there twice"),
    ((*HOLD, "--lose", "acuracy=.1"), "Did you mean 'accuracy'?"),
    ((*HOLD, "--lose", "accuracy=2"), "is no share"),
    ((*HOLD, "--lose", "perplexity=.1"), "does not measure it"),
    ((*HOLD, "--range", "sign=0:1"), "is not searched"),
    ((*HOLD, "--range", "gaussian_noise=1"), "expected name=weakest:strongest"),
    ((*HOLD, "--range", "gaussian_noise=0:1"), "is no range"),
    ((*HOLD, "--range", "gaussian_noise=.1:.1"), "is no range"),
    (("--hold", "verbatim=0"), "12 clients cannot show it"),
    ((*HOLD, "--set", "defenses=[{name='none'}]"), "names none to search"),
    ((*HOLD, "--set", "attacks=[{name='prior_only'}]"), "none of them rebuilds rows"),
    ((*HOLD, "--set", 'sweep={"federation.batch_size"=[1,2]}'), "one setting"),
]


@pytest.mark.some(3)
@pytest.mark.parametrize(("options", "message"), WRONG)
def test_a_mistake_is_one_line(
    options: tuple[str, ...], message: str, tmp_path: Path, said: Said
) -> None:
    code, _, error = said(
        "calibrate", write(tmp_path), *options, "--out", tmp_path / "run", "--quiet"
    )
    assert code == 2
    assert error.count("\n") == 1
    assert message in error
    # Too few clients are seen before anything is trained.
    assert "cannot show" not in message or not (tmp_path / "run").exists()


@pytest.mark.slow
def test_nothing_holds_and_everything_holds(tmp_path: Path, said: Said) -> None:
    file = write(tmp_path, federation={"clients": 16})
    for ends, outcome in (("1e-9:1e-7", "leaks"), ("10:1000", "holds")):
        out = tmp_path / outcome
        code, text, error = said(
            *arguments(file, out), "--range", f"gaussian_noise={ends}", "--json"
        )
        assert not error or "Traceback" not in error
        answer = json.loads(text)
        (family,) = answer["families"]
        assert family["outcome"] == outcome
        assert code == (0 if outcome == "holds" else 1)
        if outcome == "holds":
            assert family["chosen"] == 0
            page = (out / "calibration" / "index.html").read_text()
            assert "everything in the range holds" in page
        else:
            assert not (out / "calibration" / "chosen.toml").exists()


@pytest.mark.slow
def test_an_attack_that_does_not_work_decides_nothing(tmp_path: Path, said: Said) -> None:
    file = write(tmp_path, attacks=[{"name": "lamp", "steps": 1, "starts": 1, "alpha_lm": 0.0}])
    code, text, _ = said(*arguments(file, tmp_path / "run"), "--quiet")
    assert code == 1
    assert "Nothing is decided" in text
    assert "no attack that was run is shown to work here without a defense)" in text
    answer = read_record(tmp_path / "run" / "calibration" / "answer.json", Answer)
    assert answer.families[0].tried == ()


@pytest.mark.slow
def test_what_it_can_cost_is_told_first(tmp_path: Path, said: Said) -> None:
    defenses = [{"name": "gaussian_noise", "std": 0.1}, {"name": "prune", "fraction": 0.9}]
    file = write(tmp_path, defenses=defenses)
    code, text, error = said(*arguments(file, tmp_path / "run"), "--dry-run")
    assert code == 0
    assert "the most that the search can take" in text
    assert error.startswith("pruning can be shown to leak, never to hold")
    assert "noise" not in error
    cells = set(re.findall(r"small-text\.gaussian_noise\.\w+", text))
    assert len(cells) == 2  # of three strengths
    assert not (tmp_path / "run").exists()


def test_a_store_is_refused(tmp_path: Path, said: Said) -> None:
    code, _, error = said("calibrate", write(tmp_path), *HOLD, "--out", "s3://bucket/run")
    assert code == 2
    assert "a folder of this machine" in error
    assert "of this machine" in " ".join(said("calibrate", "--help")[1].split())


def test_another_question_needs_another_folder(calibrated: Path, said: Said) -> None:
    file = calibrated.parent / "small.toml"
    code, _, error = said("calibrate", file, "--hold", "rouge1=.4", "--out", calibrated)
    assert code == 2
    assert "another answer" in error


@pytest.mark.slow
def test_the_number_of_workers_is_no_part_of_the_question(calibrated: Path, said: Said) -> None:
    file = calibrated.parent / "small.toml"
    code, _, error = said(*arguments(file, calibrated), "--workers", "1")
    assert code == 0, error
