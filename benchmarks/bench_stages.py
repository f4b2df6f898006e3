"""What each stage of a run takes, in a command of its own, imports included."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from benchmarks.measure import Measure

CLIENTS, ROUNDS = 50, 20
_BATCH = 8
_EXPERIMENT = """
name = "stages"
attacks = [{{ name = "prior_only" }}, {{ name = "inverting", steps = 1 }}]
[task]
model = "lenet"
dataset = "shapes"
split = "train[:1800]"
heldout_rows = 32
image_size = 16
[auxiliary]
split = "train[1800:2000]"
[federation]
clients = {clients}
rounds = {rounds}
batch_size = {batch}
engine = "in-process"
"""
_COMMAND = """
import resource, sys
from experiments.cli import main
try:
    main()
except SystemExit as stop:
    assert not stop.code, stop.code
used = resource.getrusage(resource.RUSAGE_SELF)
print("USED", used.ru_utime + used.ru_stime, used.ru_maxrss / 1e6)
"""


class StageCost(NamedTuple):
    """CPU seconds and GB at the most of one command."""

    seconds: float
    memory: float


def stage_costs(folder: Path, clients: int, rounds: int) -> dict[str, StageCost]:
    """Simulate, attack, score and report so many captures of eight images."""
    path, run = folder / "stages.toml", str(folder / "run")
    path.write_text(_EXPERIMENT.format(clients=clients, rounds=rounds, batch=_BATCH))
    costs = {"simulate": _cost("simulate", str(path), "--out", run)}
    return costs | {stage: _cost(stage, run) for stage in ("attack", "score", "report")}


def stage_table(folder: Path) -> Iterator[Measure]:
    """A thousand captures by two attacks: 104,000 scores."""
    captures = CLIENTS * ROUNDS
    for stage, cost in stage_costs(folder, CLIENTS, ROUNDS).items():
        name = f"{stage}, {captures:,} captures"
        yield Measure(f"{name}: CPU time", cost.seconds, "s", "-")
        yield Measure(f"{name}: memory", cost.memory, "GB", "<= 1.5")


def _cost(*arguments: str) -> StageCost:
    command = [sys.executable, "-c", _COMMAND, *arguments]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    seconds, memory = done.stdout.rpartition("USED")[2].split()
    return StageCost(float(seconds), float(memory))
