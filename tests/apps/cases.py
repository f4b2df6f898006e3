"""Small experiments that run in a second or two, for the tests of the stages."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from attacks.scheduling.ledger import Ledger
from experiments.console import Console
from experiments.plan.folder import Run
from experiments.stages.attack import attackers
from experiments.stages.simulate import Simulator

Make = Callable[..., Run]

TEXT: dict[str, Any] = {
    "name": "small-text",
    "task": {"model": "tiny-bert", "dataset": "sentences", "heldout_rows": 8, "max_length": 24},
    "federation": {
        "engine": "in-process",
        "clients": 3,
        "rounds": 2,
        "learning_rate": 0.05,
        "client_rows": 2,
    },
    "attacks": [{"name": "embedding_rows"}, {"name": "prior_only"}],
}
IMAGES: dict[str, Any] = {
    "name": "small-images",
    "task": {"model": "lenet", "dataset": "shapes", "heldout_rows": 8},
    "auxiliary": {"split": "public", "rows": 20},
    "federation": {
        "engine": "in-process",
        "clients": 3,
        "rounds": 2,
        "learning_rate": 0.01,
        "client_rows": 2,
    },
    "attacks": [{"name": "inverting", "steps": 4}, {"name": "prior_only"}],
}


def merge(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """``base`` with tables updated and everything else replaced."""
    merged = dict(base)
    for key, value in changes.items():
        if isinstance(value, dict) and isinstance(base.get(key), dict):
            merged[key] = merge(base[key], value)
        else:
            merged[key] = value
    return merged


def simulate(run: Run) -> None:
    """Simulate all cells on the run's own engine."""
    with (
        Ledger(run.root / "jobs.sqlite") as ledger,
        attackers(run, ledger, Console(quiet=True)),
        Simulator() as simulator,
    ):
        for cell in run.cells:
            simulator.simulate(cell)


def files_of(folder: Path) -> dict[str, bytes]:
    """Every file below ``folder`` by its relative name."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def left_by(run: Run) -> dict[str, Any]:
    """Captures and guesses of all cells by their files, and the ledger, without times."""
    files: dict[str, Any] = {}
    for cell in run.cells:
        files |= {f"{cell.name}/{k}": v for k, v in files_of(cell.folder / "captures").items()}
        for name, content in files_of(cell.folder / "guesses").items():
            record = json.loads(content) if name.endswith(".json") else {}
            timed = ("seconds", "peak_bytes", "seal", "trace")
            kept = {key: value for key, value in record.items() if key not in timed}
            files[f"{cell.name}/{name}"] = kept or content
    with Ledger(run.root / "jobs.sqlite") as ledger:
        files["ledger"] = sorted(
            (row.cell, row.label, row.round, row.client, row.state) for row in ledger.rows()
        )
    return files
