"""``fedsim check``: a gate for continuous integration."""

from __future__ import annotations

import json
import math
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from experiments.captures.runs import load
from experiments.commands.parameters import Json, RunFolder
from experiments.plan.folder import Run
from fedsim.build import explain, nearest, suggest
from fedsim.errors import ConfigError
from fedsim.visible import say

if TYPE_CHECKING:
    import pandas as pd

    from experiments.analysis.findings import Findings
    from experiments.analysis.gate import ScoreLimit
    from experiments.plan.config import VerdictRule
    from fedsim.metrics.base import Metric

_EFFECTS = ("psnr", "rouge")
"""Smallest effects of ``[verdict]``."""


class Compare(Enum):
    """What ``fedsim check`` holds to a limit."""

    BOUND = "bound"
    MEAN = "mean"
    CLIENT = "client"


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
        typer.Option(
            "--max-verbatim",
            min=0,
            help="examples of a defense that may come back exactly, by any attack",
        ),
    ] = None,
    smallest: Annotated[
        list[str] | None,
        typer.Option(
            "--smallest",
            metavar="psnr=DB or rouge=VALUE",
            help="ask each defense for the verdict that no leak above this is found",
        ),
    ] = None,
    compare: Annotated[
        Compare, typer.Option(help="what is held to a limit: the 95 % bound, mean or worst client")
    ] = Compare.BOUND,
    defense: Annotated[str | None, typer.Option(help="check the cells of this defense")] = None,
    as_json: Json = False,
) -> None:
    """Fail if an attack reaches more than is allowed: a gate for continuous integration.

    Each attack under each defense is held to the limits, and what was not tested fails, as where
    the attacks return less than a guess that sees no update. The 95 % bound is held to a limit,
    which with few clients passes none; --compare mean asks less. With --smallest the run is judged
    again by that smallest effect. Options may be repeated. Exit code 1 says that something leaks
    more, or was not tested.
    """
    from experiments.analysis.gate import ScoreLimit, broken
    from experiments.analysis.summary import metric_classes
    from experiments.report.headline import open_verdicts

    limits = [ScoreLimit(*_limit(text), most=True) for text in most or []]
    limits += [ScoreLimit(*_limit(text), most=False) for text in least or []]
    effects = dict(map(_limit, smallest or []))
    if not limits and verbatim is None and not effects:
        raise ConfigError("check: there is nothing to check. Pass --max rouge1=0.3, for example.")
    for limit in limits:
        if limit.metric not in (known := metric_classes()):
            raise ConfigError(f"{limit.metric!r} is no metric. {suggest(limit.metric, known)}")
        _check_side(limit, known[limit.metric])
    if unknown := sorted(effects.keys() - _EFFECTS):
        raise ConfigError(f"--smallest {unknown[0]!r}: {suggest(unknown[0], _EFFECTS)}")
    scores = _scores(run)
    if count := int((scores.status == "interrupted").sum()):
        raise ConfigError(f"{run}: {count} values are missing. Run fedsim run {run} to finish it.")
    if defense is not None:
        if defense not in (ran := sorted(set(scores.defense))):
            similar = f"Did you mean {near!r}? " if (near := nearest(defense, ran)) else ""
            names = " and ".join("none (no defense)" if n == "none" else n for n in ran)
            raise ConfigError(
                f"--defense {defense!r}: nothing was attacked under it. {similar}"
                f"The run has {names}."
            )
        scores = scores[scores.defense == defense]
    lines = broken(scores, limits, compare=compare.value, verbatim=verbatim, rule=_rule(run))
    if effects:
        lines += open_verdicts(_judged(run, effects), defense)
    if as_json:
        say(json.dumps({"passed": not lines, "broken": lines}))
    else:
        count = len(limits) + (verbatim is not None) + bool(effects)
        held = "1 limit holds" if count == 1 else f"{count} limits hold"
        say("\n".join(lines) or f"passed: {held}")
    raise typer.Exit(1 if lines else 0)


def _scores(run: Path) -> pd.DataFrame:
    """All rows of a run, told apart by setting."""
    from experiments.analysis.frames import score_frame
    from experiments.wording.names import settings
    from fedsim.api.run import RunFolder

    load(run)  # says what is wrong with the folder
    rows = RunFolder(run).scores
    cells = {cell.name: cell.config for cell in Run.open(run).cells}
    return score_frame(rows, settings(cells, {row.cell: row.run for row in rows}))


def _rule(run: Path) -> VerdictRule:
    """The smallest of the effects that count in a run's experiments."""
    from experiments.plan.config import VerdictRule
    from experiments.plan.folder import read_rules

    rules = list(read_rules(run).values()) or [VerdictRule()]
    return VerdictRule(psnr=min(rule.psnr for rule in rules), rouge=min(r.rouge for r in rules))


def _judged(run: Path, effects: dict[str, float]) -> Findings:
    """The findings of a run by other smallest effects; the rest of its rule stays."""
    from pydantic import ValidationError

    from experiments.plan.config import VerdictRule
    from experiments.plan.folder import read_rules
    from experiments.report.summary_file import judged

    try:
        rules = {
            name: VerdictRule.model_validate(rule.model_dump() | effects)
            for name, rule in read_rules(run).items()
        }
    except ValidationError as error:
        raise ConfigError(explain(error, "--smallest")) from None
    return judged(run, rules)


def _limit(text: str) -> tuple[str, float]:
    name, _, written = text.partition("=")
    try:
        value = float(written)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ConfigError(f"{text!r}: no limit. Write metric=value, e.g. rouge1=0.3.")
    return name, value


def _check_side(limit: ScoreLimit, metric: type[Metric]) -> None:
    """Refuse a limit that more leakage is sure to keep, or that no value can break."""
    if limit.most != (metric.attacker_wants == "higher"):
        wrong, right = ("--max", "--min") if limit.most else ("--min", "--max")
        raise ConfigError(
            f"{wrong} {limit.metric}={limit.value:g}: the more leaks, the "
            f"{'lower' if limit.most else 'higher'} is {limit.metric}. Write {right}."
        )
    if metric.unit == "1" and not 0 <= limit.value <= 1:
        raise ConfigError(
            f"{limit.metric}={limit.value:g}: {limit.metric} lies between 0 and 1. Write a share."
        )
