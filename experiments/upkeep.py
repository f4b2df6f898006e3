"""Commands on finished runs: a list of them, their report, their removal, and a gate for CI."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
import webbrowser
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from experiments.audit.runs import load
from experiments.options import Json, RunFolder
from experiments.plan.folder import check_version
from fedsim.build import suggest
from fedsim.errors import ConfigError, StoreError

_STAGES = (("summary.json", "reported"), ("scores.parquet", "scored"), ("jobs.sqlite", "attacked"))
_PARTS = ("report", "gallery", "export", "tensorboard")
"""Folders of a run beside those of its cells."""


def ls(
    folder: Annotated[Path, typer.Argument(help="folder of runs")] = Path("runs"),
    as_json: Json = False,
) -> None:
    """List the runs of a folder with their state, age and size."""
    found = [_row(path.parent) for path in sorted(folder.glob("*/experiment.toml"))]
    if as_json:
        print(json.dumps(found))
        return
    if not found:
        raise ConfigError(f"{folder}: holds no run. Run fedsim run quickstart, or name its folder.")
    width = max(len(row["run"]) for row in found)
    for row in found:
        age, size = f"{row['hours']:.0f} h", f"{row['megabytes']:.0f} MB"
        print(f"{row['run']:<{width}}  {row['state']:<9}  {age:>7}  {size:>8}")


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
    print(page)
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
    print(found.model_dump_json() if as_json else found.text(every=every))
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
    print(f"{run}: freed {size:.1f} MB")


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
        typer.Option("--max", metavar="METRIC=VALUE", help="largest mean that is allowed"),
    ] = None,
    least: Annotated[
        list[str] | None,
        typer.Option("--min", metavar="METRIC=VALUE", help="smallest mean that is allowed"),
    ] = None,
    defense: Annotated[str | None, typer.Option(help="check the cells of this defense")] = None,
    as_json: Json = False,
) -> None:
    """Fail if an attack reaches more than is allowed: a gate for continuous integration.

    The mean of each attack under each defense over all private examples is compared.
    """
    limits = [(*_limit(text), 1.0) for text in most or []]
    limits += [(*_limit(text), -1.0) for text in least or []]
    if not limits:
        raise ConfigError("check: there is nothing to check. Pass --max rouge1=0.3, for example.")
    scores = load(run).scores
    if count := int((scores.status == "interrupted").sum()):
        raise ConfigError(f"{run}: {count} values are missing. Run fedsim run {run} to finish it.")
    kept = scores[(scores.control == "none") & (scores.probe == "none")].dropna(subset="value")
    if defense is not None:
        kept = kept[kept.defense == defense]
        if kept.empty:
            raise ConfigError(f"--defense {defense!r}: {suggest(defense, set(scores.defense))}")
    broken = []
    for metric, bound, sign in limits:
        chosen = kept[kept.metric == metric]
        if chosen.empty:
            known = suggest(metric, set(kept.metric))
            raise ConfigError(f"{metric!r}: not scored in {run}. {known}")
        keys = ["defense", "defense_options", "attack", "attack_options"]
        for (name, _, attack, _), value in chosen.groupby(keys).value.mean().items():
            if sign * value > sign * bound:
                than = "above" if sign > 0 else "below"
                broken.append(f"{attack} under {name}: {metric} {value:.3g} is {than} {bound:g}")
    if as_json:
        print(json.dumps({"passed": not broken, "broken": broken}))
    else:
        print("\n".join(broken) or f"passed: {len(limits)} limits hold")
    raise typer.Exit(1 if broken else 0)


def _limit(text: str) -> tuple[str, float]:
    name, _, value = text.partition("=")
    try:
        return name, float(value)
    except ValueError:
        raise ConfigError(f"{text!r}: no limit. Write metric=value, e.g. rouge1=0.3.") from None
