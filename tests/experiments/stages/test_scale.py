"""What 10,000 captures and a million scores take, stage by stage, in commands of their own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXPERIMENT = """
name = "scale"
attacks = [{ name = "prior_only" }, { name = "inverting", steps = 1 }]
[task]
model = "lenet"
dataset = "shapes"
split = "train[:1800]"
heldout_rows = 32
image_size = 16
[auxiliary]
split = "train[1800:2000]"
[federation]
clients = 200
rounds = 50
batch_size = 8
engine = "in-process"
"""
COMMAND = """
import resource, sys
from experiments.cli import main
try:
    main()
except SystemExit as stop:
    assert not stop.code, stop.code
used = resource.getrusage(resource.RUSAGE_SELF)
print("USED", used.ru_utime + used.ru_stime, used.ru_maxrss / 1e6)
"""


def cost(*arguments: str) -> tuple[float, float]:
    """CPU seconds and GB of a command, imports included."""
    command = [sys.executable, "-c", COMMAND, *arguments]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    used = done.stdout.rpartition("USED")[2].split()
    return float(used[0]), float(used[1])


@pytest.mark.slow
def test_ten_thousand_captures_and_a_million_scores(tmp_path: Path) -> None:
    (tmp_path / "scale.toml").write_text(EXPERIMENT)
    run = str(tmp_path / "run")
    cost("simulate", str(tmp_path / "scale.toml"), "--out", run)
    cost("attack", run)
    costs = [cost(stage, run) for stage in ("score", "report")]
    assert sum(seconds for seconds, _ in costs) < 300
    assert max(memory for _, memory in costs) < 1.5
