"""What commands say about finished runs, and what they say when stopped."""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import fedsim
from experiments import cli
from experiments.pipeline import execute
from experiments.plan.folder import STAGES
from tests.apps.cases import TEXT, Make
from tests.apps.mistakes import BASE

Said = Callable[..., tuple[object, str, str]]


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Said:
    """``said("ls")``: exit status, stdout and stderr of a command."""

    def run(*arguments: object) -> tuple[object, str, str]:
        monkeypatch.setattr(sys, "argv", ["fedsim", *map(str, arguments)])
        with pytest.raises(SystemExit) as stop:
            cli.main()
        return stop.value.code, *capsys.readouterr()

    return run


def test_a_run_is_listed_checked_and_loaded(make_run: Make, said: Said, tmp_path: Path) -> None:
    run = make_run(TEXT, federation={"rounds": 1, "client_rows": 1})
    outcome = execute(run, STAGES, quiet=True)
    answer = outcome.line().splitlines()[-1]
    assert answer == "no defense: embedding rows, 3 of 3 texts recovered, rougeL 1"
    assert outcome.table()["answer"] == answer
    (listed,) = json.loads(said("ls", tmp_path, "--json")[1])
    assert listed["state"] == "reported"
    assert listed["megabytes"] > 0
    assert "reported" in said("ls", tmp_path)[1]
    frames = fedsim.load(run.root)
    assert set(frames.scores.attack) == {"embedding_rows", "prior_only"}
    assert set(frames.utility["round"]) == {0, 1}
    code, out, _ = said("check", run.root, "--max", "rouge1=0.3")
    assert (code, out) == (1, "embedding_rows under none: rouge1 1 is above 0.3\n")
    assert said("check", run.root, "--max", "rouge1=1", "--min", "rouge1=0")[0] == 0
    broken = json.loads(said("check", run.root, "--min", "rouge1=0.5", "--json")[1])
    assert broken["passed"] is False
    for wrong, fix in (
        ((), "Pass --max"),
        (("--max", "rouge1"), "Write metric=value"),
        (("--max", "rogue1=1"), "Did you mean 'rouge1'?"),
        (("--max", "rouge1=1", "--defense", "nonee"), "Did you mean 'none'?"),
    ):
        code, _, error = said("check", run.root, *wrong)
        assert code == 2
        assert fix in error


def test_a_folder_without_runs_says_so(said: Said, tmp_path: Path) -> None:
    assert "holds no run" in said("ls", tmp_path)[2]


def test_a_dry_run_runs_nothing(
    said: Said, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("small.toml").write_text(BASE)
    code, out, _ = said("run", "small.toml", "--dry-run")
    assert code == 0
    assert "prior_only" in out
    assert [path.name for path in tmp_path.iterdir()] == ["small.toml"]


def test_an_interrupt_says_how_to_continue(said: Said, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("experiments.invocation.Invocation.run", interrupted)
    code, _, error = said("run", "quickstart")
    assert code == 130
    assert "interrupted. Run the same command again" in error


def test_options_of_foreign_captures_do_not_fit_a_run(said: Said) -> None:
    code, _, error = said("attack", "quickstart", "--model", "gpt2")
    assert code == 2
    assert "--model: is for the captures of another application" in error


def test_more_workers_than_cores_are_remarked_on(
    said: Said, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    monkeypatch.setattr("experiments.pipeline.execute", lambda *_, **__: sys.exit(0))
    monkeypatch.chdir(tmp_path)
    Path("small.toml").write_text(BASE)
    command = ("run", "small.toml", "--engine", "ray", "--workers")
    assert "8 workers share 2 cores" in said(*command, "8")[2]
    assert said(*command, "2")[2] == ""
