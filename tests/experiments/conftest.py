"""A finished run, which tests may copy, and the command line in this process."""

import math
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from experiments import cli
from experiments.pipeline import execute
from experiments.plan.config import Plan, parse_experiment
from experiments.plan.folder import STAGES, Run
from tests.apps.cases import TEXT, merge

Said = Callable[..., tuple[object, str, str]]


@pytest.fixture(autouse=True)
def _name_of_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """Click would name it by pytest where that is started by python -m, and not in a worker."""
    monkeypatch.setattr(sys.modules["__main__"], "__package__", None)


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Said]:
    """``said("ls")``: exit status, stdout and stderr of a command, however slow the machine is."""
    monkeypatch.setattr("experiments.console._PLAIN_EVERY", math.inf)  # lines of progress by time

    def run(*arguments: object) -> tuple[object, str, str]:
        monkeypatch.setattr(sys, "argv", ["fedsim", *map(str, arguments)])
        with pytest.raises(SystemExit) as stop:
            cli.main()
        return stop.value.code, *capsys.readouterr()

    before = signal.getsignal(signal.SIGTERM)
    yield run
    signal.signal(signal.SIGTERM, before)


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A reported run of text; tests leave it as it is."""
    small = {"federation": {"rounds": 1, "client_rows": 1}}
    config = parse_experiment(merge(TEXT, small))
    root = tmp_path_factory.mktemp("runs") / "finished"
    run = Run.create(Plan(name=config.name, experiments=(config,)), root)
    assert not execute(run, STAGES, quiet=True).failed
    return root


@pytest.fixture
def copied(finished: Path, tmp_path: Path) -> Path:
    """A copy of the finished run."""
    return Path(shutil.copytree(finished, tmp_path / "copied"))
