"""Commands on finished runs: a list of them, their report, their removal, and a gate for CI."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
import webbrowser
from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from experiments.audit.runs import load
from experiments.options import Json, RunFolder
from experiments.plan.folder import Run, check_version
from fedsim.build import suggest
from fedsim.errors import ConfigError, StoreError
from fedsim.visible import say

if TYPE_CHECKING:
    import pandas as pd

_STAGES = (("summary.json", "reported"), ("scores.parquet", "scored"), ("jobs.sqlite", "attacked"))
_PARTS = ("report", "redacted", "gallery", "export", "tensorboard")
"""Folders of a run beside those of its cells."""


class Compare(Enum):
    """What ``fedsim check`` holds to a limit."""

    BOUND = "bound"
    MEAN = "mean"
    CLIENT = "client"


def ls(
    folder: Annotated[Path, typer.Argument(help="folder of runs")] = Path("runs"),
    as_json: Json = False,
) -> None:
    """List the runs of a folder with their state, age and size."""
    found = [_row(path.parent) for path in sorted(folder.glob("*/experiment.toml"))]
    if as_json:
        say(json.dumps(found))
        return
    if not found:
        raise ConfigError(f"{folder}: holds no run. Run fedsim run quickstart, or name its folder.")
    width = max(len(row["run"]) for row in found)
    for row in found:
        age, size = f"{row['hours']:.0f} h", f"{row['megabytes']:.0f} MB"
        say(f"{row['run']:<{width}}  {row['state']:<9}  {age:>7}  {size:>8}")


def _row(run: Path) -> dict[str, Any]:
    files = [path.lstat() for path in run.rglob("*") if not path.is_dir()]
    state = next((word for name, word in _STAGES if (run / name).exists()), "planned")
    return {
        "run": str(run),
        "state": state,
        "hours": (time.time() - max(file.st_mtime for file in files)) / 3600,
        "megabytes": sum(file.st_size for file in files) / 1e6,
    }


def open_(run: RunFolder) -> None:
    """Open the report in a browser, and print its path."""
    check_version(run)
    page = run / "report" / "index.html"
    if not page.exists():
        raise StoreError(f"{run}: has no report. Run fedsim report {run} first.")
    say(page)
    screens = ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")
    if sys.platform != "linux" or any(os.environ.get(name) for name in screens):
        webbrowser.open(page.resolve().as_uri())


def diff(
    before: RunFolder,
    after: RunFolder,
    every: Annotated[bool, typer.Option("--all", help="show what did not move as well")] = False,
    as_json: Json = False,
) -> None:
    """Compare two runs: which numbers moved beyond their 95 % intervals.

    The same private examples are compared with each other; where the runs attacked different ones,
    the two means' own intervals count. Exit code 1 says that a number moved.
    """
    from experiments.analysis.differences import compare

    for run in (before, after):
        check_version(run)
    found = compare(before, after)
    say(json.dumps(found.model_dump(mode="json")) if as_json else found.text(every=every))
    raise typer.Exit(1 if any(change.moved for change in found.changes) else 0)


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
    from attacks.scheduling.run_lock import lock_run

    check_version(run)
    cells = [path.parent for path in sorted(run.glob("*/cell.json"))]
    kept = {*cells, *(run / name for name in _PARTS)}
    other = sorted(path for path in run.iterdir() if path.is_dir() and path not in kept)
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


def check(
    run: RunFolder,
    most: Annotated[
        list[str] | None,
        typer.Option("--max", metavar="METRIC=VALUE", help="the most that is allowed"),
    ] = None,
    least: Annotated[
        list[str] | None,
        typer.Option("--min", metavar="METRIC=VALUE", help="the least that is allowed"),
    ] = None,
    verbatim: Annotated[
        int | None,
        typer.Option("--max-verbatim", min=0, help="examples that may come back exactly"),
    ] = None,
    compare: Annotated[
        Compare, typer.Option(help="what is held to a limit: the 95 % bound, mean or worst client")
    ] = Compare.BOUND,
    defense: Annotated[str | None, typer.Option(help="check the cells of this defense")] = None,
    as_json: Json = False,
) -> None:
    """Fail if an attack reaches more than is allowed: a gate for continuous integration.

    Each attack under each defense is held to the limits, and what was not tested fails. A limit
    holds where it holds at 95 %, so that few clients pass none; --compare mean asks less.
    """
    from experiments.analysis.gate import Limit, broken
    from experiments.analysis.summary import metric_classes

    limits = [Limit(*_limit(text), most=True) for text in most or []]
    limits += [Limit(*_limit(text), most=False) for text in least or []]
    if not limits and verbatim is None:
        raise ConfigError("check: there is nothing to check. Pass --max rouge1=0.3, for example.")
    for limit in limits:
        if limit.metric not in (known := metric_classes()):
            raise ConfigError(f"{limit.metric!r}: is no metric. {suggest(limit.metric, known)}")
    scores = _scores(run)
    if count := int((scores.status == "interrupted").sum()):
        raise ConfigError(f"{run}: {count} values are missing. Run fedsim run {run} to finish it.")
    if defense is not None:
        if defense not in set(scores.defense):
            raise ConfigError(f"--defense {defense!r}: {suggest(defense, set(scores.defense))}")
        scores = scores[scores.defense == defense]
    lines = broken(scores, limits, compare=compare.value, verbatim=verbatim)
    if as_json:
        say(json.dumps({"passed": not lines, "broken": lines}))
    else:
        count = len(limits) + (verbatim is not None)
        held = "1 limit holds" if count == 1 else f"{count} limits hold"
        say("\n".join(lines) or f"passed: {held}")
    raise typer.Exit(1 if lines else 0)


def _scores(run: Path) -> pd.DataFrame:
    """All rows of a run, told apart by setting."""
    from experiments.analysis.frames import score_frame
    from experiments.stages.rows import read_rows
    from experiments.wording.names import settings
    from fedsim.records import ScoreRow

    load(run)  # says what is wrong with the folder
    rows = read_rows(run / "scores.parquet", ScoreRow)
    cells = {cell.name: cell.config for cell in Run.open(run).cells}
    return score_frame(rows, settings(cells, {row.cell: row.run for row in rows}))


def _limit(text: str) -> tuple[str, float]:
    name, _, value = text.partition("=")
    try:
        return name, float(value)
    except ValueError:
        raise ConfigError(f"{text!r}: no limit. Write metric=value, e.g. rouge1=0.3.") from None
