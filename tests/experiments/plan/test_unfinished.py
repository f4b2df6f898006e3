"""What is said of a run that was stopped names one command that goes on."""

from pathlib import Path

import pytest

from experiments import pipeline
from fedsim.api.run import continuation, to_report
from fedsim.errors import Terminated
from tests.apps.mistakes import BASE
from tests.experiments.conftest import Said


@pytest.fixture
def run(tmp_path: Path) -> Path:
    root = tmp_path / "run"
    for name in ("a.none.1", "a.sign.2"):
        (root / name / "guesses" / "span").mkdir(parents=True)
        (root / name / "cell.json").touch()
    return root


def test_what_is_there_can_be_seen_once_every_cell_is_trained(run: Path) -> None:
    finish = f"Run fedsim run {run} to finish it."
    (run / "a.none.1" / "simulation.json").touch()
    (run / "a.none.1" / "guesses" / "span" / "round-0001-client-0000.json").touch()
    assert continuation(run) == to_report(run) == finish
    (run / "a.sign.2" / "simulation.json").touch()
    see = f"{finish} To see how far it got: fedsim score {run} && fedsim report {run}."
    assert continuation(run) == to_report(run) == see
    (run / "scores.parquet").touch()
    assert to_report(run) == f"Run fedsim report {run} first."


def test_captures_of_another_application_have_their_own_commands(run: Path) -> None:
    (run.parent / "run.json").touch()
    assert continuation(run) == f"Run fedsim attack {run.parent}."
    (run / "a.none.1" / "guesses" / "span" / "round-0001-client-0000.json").touch()
    assert continuation(run).startswith(f"Run fedsim score {run.parent} --truth FOLDER")


@pytest.mark.parametrize(
    ("stop", "code", "how"),
    [(KeyboardInterrupt(), 130, "interrupted"), (Terminated(143), 143, "terminated")],
)
def test_a_run_that_is_stopped_says_once_how_to_go_on(
    stop: BaseException,
    code: int,
    how: str,
    said: Said,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def stopped(*_: object, **__: object) -> None:
        raise stop

    monkeypatch.setattr(pipeline, "execute", stopped)
    (tmp_path / "small.toml").write_text(BASE)
    out = tmp_path / "run"
    line = f"fedsim: {how}. Run fedsim run {out} to finish it.\n"
    assert said("run", tmp_path / "small.toml", "--out", out) == (code, "", line)
