"""``fedsim ls``: the runs of a folder."""

import json
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from experiments.commands.parameters import Json
from fedsim.errors import ConfigError
from fedsim.visible import say

_STAGES = (
    ("summary.json", "reported"),
    ("scores.parquet", "scored"),
    ("*/guesses/*/*.json", "attacked"),
    ("*/simulation.json", "simulated"),
)
"""What there is of a run that has come so far, though perhaps not in every cell or job."""


def ls(
    folder: Annotated[Path, typer.Argument(help="folder of runs")] = Path("runs"),
    as_json: Json = False,
) -> None:
    """List the runs of a folder, or that run itself, with their state, age and size."""
    plans = (*folder.glob("experiment.toml"), *sorted(folder.glob("*/experiment.toml")))
    runs = [_row(path.parent) for path in plans]
    if as_json:
        say(json.dumps(runs))
        return
    if not runs:
        raise ConfigError(f"{folder}: holds no run. Run fedsim run quickstart, or name another.")
    width = max(len(row["run"]) for row in runs)
    for row in runs:
        age, size = f"{row['hours']:.0f} h", f"{row['megabytes']:.0f} MB"
        say(f"{row['run']:<{width}}  {row['state']:<9}  {age:>7}  {size:>8}")


def _row(run: Path) -> dict[str, Any]:
    files = [path.lstat() for path in run.rglob("*") if not path.is_dir()]
    state = next((word for files, word in _STAGES if any(run.glob(files))), "planned")
    return {
        "run": str(run),
        "state": state,
        "hours": (time.time() - max(file.st_mtime for file in files)) / 3600,
        "megabytes": sum(file.st_size for file in files) / 1e6,
    }
