"""Commands on finished runs: a list of them, and a gate for continuous integration."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from experiments.audit.runs import load
from experiments.options import Json
from fedsim.build import suggest
from fedsim.errors import ConfigError

_STAGES = (("summary.json", "reported"), ("scores.parquet", "scored"), ("jobs.sqlite", "attacked"))


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
    files = [path.stat() for path in run.rglob("*") if path.is_file()]
    state = next((word for name, word in _STAGES if (run / name).exists()), "planned")
    return {
        "run": str(run),
        "state": state,
        "hours": (time.time() - max(file.st_mtime for file in files)) / 3600,
        "megabytes": sum(file.st_size for file in files) / 1e6,
    }


def check(
    run: Annotated[Path, typer.Argument(help="a scored run")],
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
    kept = scores[(scores.control == "none") & (scores.probe == "none")]
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
