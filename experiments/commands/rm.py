"""``fedsim rm``: the removal of a run, or of its captures."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from experiments.commands.parameters import RunFolder
from fedsim.api.run import check_version
from fedsim.errors import ConfigError
from fedsim.visible import say

_PARTS = ("report", "redacted", "gallery", "calibration", "evidence")
"""Folders of a run beside those of its cells."""


def rm(
    run: RunFolder,
    captures: Annotated[
        bool, typer.Option("--captures", help="remove the captured updates alone")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="do not ask")] = False,
) -> None:
    """Remove a run; or with --captures the updates in it, which are most of its size.

    Guesses, scores and report then stay, and fedsim run captures the same updates again.
    """
    from attacks.scheduling.ledger import lock_run

    check_version(run)
    cells = [path.parent for path in sorted(run.glob("*/cell.json"))]
    parts = {*cells, *(run / name for name in _PARTS), *run.glob("captures.????????")}
    other = sorted(path for path in run.iterdir() if path.is_dir() and path not in parts)
    if other and not captures:
        raise ConfigError(f"{other[0]}: is no part of a run. Move it away first.")
    gone = [cell / "captures" for cell in cells] if captures else [run]
    with lock_run(run / "jobs.sqlite"):
        size = _megabytes(gone)
        if not yes:
            _ask(f"Remove {'the captures of ' if captures else ''}{run}, {size:.1f} MB?")
        for cell in cells if captures else ():
            (cell / "simulation.json").unlink(missing_ok=True)
        for folder in filter(Path.exists, gone):
            shutil.rmtree(folder)
    say(f"{run}: freed {size:.1f} MB")


def _ask(question: str) -> None:
    try:
        agreed = typer.confirm(question, err=True)
    except typer.Abort:
        raise ConfigError("rm: nobody answered. Pass --yes to remove without a question.") from None
    if not agreed:
        raise typer.Exit(1)


def _megabytes(folders: Sequence[Path]) -> float:
    files = [path for folder in folders for path in folder.rglob("*") if path.is_file()]
    return sum(path.stat().st_size for path in files) / 1e6
