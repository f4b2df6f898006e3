"""What ``fedsim show`` says at once: what the file sets, its jobs, and what such jobs took."""

import shutil
from pathlib import Path

import pytest

from experiments.plan.folder import Run
from experiments.preview.brief import brief
from tests.experiments.conftest import Said


@pytest.fixture
def ran(finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """A finished run below ``runs/`` of the working directory."""
    root = shutil.copytree(finished, tmp_path / "runs" / "before")
    monkeypatch.chdir(tmp_path)
    return Run.open(root)


def jobs(text: str) -> dict[str, str]:
    """Attack -> what is said of its jobs."""
    _, _, after = text.partition("# jobs\n")
    return dict(line.split(": ", 1) for line in after.split("\n\n")[0].splitlines())


def test_times_are_those_of_jobs_on_the_same_model(ran: Run) -> None:
    (experiment,) = ran.plan.experiments
    said = jobs(brief(ran.plan))
    assert said.keys() == {str(table["name"]) for table in experiment.attacks}
    assert all("the median of 3 jobs of it" in each for each in said.values())
    task = experiment.task.model_copy(update={"model": "tiny-gpt2"})
    other = experiment.model_copy(update={"task": task})
    plan = ran.plan.model_copy(update={"experiments": (other,)})
    assert all("none ran on tiny-gpt2" in each for each in jobs(brief(plan)).values())


def test_a_run_that_cannot_be_read_tells_nothing(ran: Run) -> None:
    (ran.root / "jobs.sqlite").write_bytes(b"no ledger")
    assert all("none ran" in each for each in jobs(brief(ran.plan)).values())


def test_defaults_are_shown_when_asked(ran: Run, said: Said) -> None:
    said_first, said_all = (said("show", ran.root, *more)[1] for more in ((), ("--all",)))
    assert "learning_rate_schedule" not in said_first
    assert said_first.index("[task]") < said_first.index("# cells") < said_first.index("# jobs")
    assert len(said_all.splitlines()) > 2 * len(said_first.splitlines())
    assert "# threat model" in said_all
