"""Toy tracks of six clients, which are simulated and sealed in about a second each."""

from pathlib import Path
from typing import Any

from experiments.extras.arena.sealing import SealedTrack, seal
from experiments.pipeline import execute
from experiments.plan.config import Plan, parse_experiment
from experiments.plan.folder import Run
from fedsim.api import Run as StoredRun
from tests.apps.cases import merge

SECRET = 0x2A54B9D1C3E7F086
FEDERATION = {"engine": "in-process", "clients": 6, "batch_size": 1}
TEXTS: dict[str, Any] = {
    "name": "toy-texts",
    "task": {
        "model": "tiny-gpt2",
        "dataset": "sentences",
        "split": "drawn@1[:60]",
        "heldout_rows": 4,
    },
    "auxiliary": {"split": "public", "rows": 20},
    "federation": FEDERATION,
}
IMAGES: dict[str, Any] = {
    "name": "toy-images",
    "task": {
        "model": "mlp",
        "dataset": "shapes",
        "split": "drawn@1[:12]",
        "image_size": 8,
        "heldout_rows": 4,
    },
    "federation": FEDERATION,
}
MEMBERS = merge(
    IMAGES,
    {
        "name": "toy-members",
        "task": {"heldout_rows": 60},
        "federation": {"batch_size": 2},
        "candidates": {"fresh": 20},
    },
)


def sealed_track(table: dict[str, Any], root: Path) -> SealedTrack:
    """Simulate under a seed and a key that are long enough, the same in every test, and seal."""
    drawn = table["task"]["split"].replace("@1", f"@{SECRET:x}")
    config = parse_experiment(merge(table, {"seeds": [SECRET], "task": {"split": drawn}}))
    run = Run.create(Plan(name=config.name, experiments=(config,)), root / "run")
    execute(run, ("simulate",), quiet=True)
    return seal(StoredRun.open(run.root), root)
