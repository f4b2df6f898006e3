"""``kill -9`` at any time: the same command again ends with the rows of an undisturbed run."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from experiments.pipeline import execute
from experiments.plan.folder import STAGES
from fedsim.api.ledger import read_ledger
from tests.apps.cases import IMAGES, Make, merge
from tests.experiments.stages.cases import scores

PATIENCE = 900.0


def write_experiment(path: Path, engine: str) -> Path:
    changes = {
        "federation": {"engine": engine, "rounds": 4, "clients": 3},
        "attacks": [{"name": "inverting", "steps": 12}, {"name": "prior_only"}],
        "attack_stage": {"group_size": 1},
    }
    file = path / "experiment.toml"
    file.write_text(tomli_w.dumps(merge(IMAGES, changes)))
    return file


def command(file: Path, run: Path) -> list[str]:
    code = "from experiments.cli import main; main()"
    return [sys.executable, "-c", code, "run", str(file), "--out", str(run), "--quiet"]


def finish(file: Path, run: Path) -> None:
    subprocess.run(command(file, run), check=True, timeout=PATIENCE, capture_output=True)


def kill_when(file: Path, run: Path, ready: Callable[[], bool]) -> None:
    """Start the command and kill it, and it alone, as soon as ``ready``."""
    process = subprocess.Popen(command(file, run), stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + PATIENCE
    while not ready():
        assert process.poll() is None, "the command ended before it could be killed"
        assert time.monotonic() < deadline, "the moment to kill never came"
        time.sleep(0.002)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()


def in_simulation(run: Path) -> Callable[[], bool]:
    return lambda: any(run.glob("*/captures/round-0002/*.json"))


def in_attack(run: Path) -> Callable[[], bool]:
    return lambda: len(list(run.glob("*/guesses/inverting-*/*.json"))) >= 3


MOMENTS = {"simulation": in_simulation, "attack": in_attack}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("undisturbed")
    finish(write_experiment(folder, "in-process"), folder / "run")
    return scores(folder / "run")


@pytest.mark.slow
@pytest.mark.parametrize("moment", MOMENTS)
def test_killed_command_in_process(
    moment: str, tmp_path: Path, undisturbed: list[dict[str, Any]]
) -> None:
    file = write_experiment(tmp_path, "in-process")
    killed = tmp_path / "killed"
    kill_when(file, killed, MOMENTS[moment](killed))
    assert not (killed / "scores.parquet").exists()
    finish(file, killed)
    assert scores(killed) == undisturbed
    rows = read_ledger(killed / "jobs.sqlite")
    assert len(rows) == 4 * 3 * 2
    assert {row.state for row in rows} == {"done"}
    if moment == "attack":
        assert any(row.attempts == 1 for row in rows)


@pytest.mark.slow
@pytest.mark.parametrize("moment", MOMENTS)
def test_killed_command_on_ray(
    moment: str, tmp_path: Path, undisturbed: list[dict[str, Any]]
) -> None:
    file = write_experiment(tmp_path, "ray")
    killed = tmp_path / "killed"
    kill_when(file, killed, MOMENTS[moment](killed))
    finish(file, killed)
    assert scores(killed) == undisturbed


@pytest.mark.slow
def test_killed_attack_worker_on_ray(tmp_path: Path, undisturbed: list[dict[str, Any]]) -> None:
    file = write_experiment(tmp_path, "ray")
    run = tmp_path / "run"
    process = subprocess.Popen(command(file, run), stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + PATIENCE
    worker = None
    while worker is None:
        assert process.poll() is None, "the command ended before a worker attacked"
        assert time.monotonic() < deadline, "no worker attacked"
        if (run / "jobs.sqlite").exists() and in_attack(run)():
            running = [r for r in read_ledger(run / "jobs.sqlite") if r.state == "running"]
            pids = [int(row.worker.split("@")[0]) for row in running if row.worker]
            worker = next((pid for pid in pids if pid != process.pid), None)
        time.sleep(0.01)
    os.kill(worker, signal.SIGKILL)
    assert process.wait(timeout=PATIENCE) == 0
    assert scores(run) == undisturbed


def test_each_stage_keeps_the_command_that_ran_it(
    make_run: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(IMAGES)
    for arguments, stages in (["run", "x"], STAGES[:-1]), (["report"], STAGES[-1:]):
        monkeypatch.setattr(sys, "argv", ["fedsim", *arguments])
        execute(run, stages, quiet=True)
    noted = json.loads((run.root / "provenance.json").read_text())
    assert noted["commands"] == dict.fromkeys(STAGES[:-1], "fedsim run x") | {
        "report": "fedsim report"
    }
    assert noted["devices"] == {stage: ["cpu"] for stage in STAGES}
    assert noted["commits"].keys() == noted["seconds"].keys() == set(STAGES)
