"""``fedsim check``: a gate for continuous integration."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NoReturn

import typer

from experiments.commands.captures import Loss, Model
from experiments.commands.parameters import Json, RunFolder
from experiments.report.run_frames import load
from fedsim.config.build import explain, named_number, nearest, suggest
from fedsim.errors import ConfigError
from fedsim.visible import say

if TYPE_CHECKING:
    from experiments.analysis.findings import Findings
    from experiments.report.gate import ScoreLimit
    from fedsim.metrics.base import Metric

_EFFECTS = ("psnr", "rouge")
"""Smallest effects of ``[verdict]``."""


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
    attest: Annotated[
        list[str] | None,
        typer.Option(metavar="RULE", help='what every reply has to show: "noise >= .01"'),
    ] = None,
    model: Model = None,
    loss: Loss = None,
    compare: Annotated[
        Literal["bound", "mean"],
        typer.Option(help="what is held to a limit: the 95 % bound or the mean"),
    ] = "bound",
    defense: Annotated[str | None, typer.Option(help="check the cells of this defense")] = None,
    as_json: Json = False,
) -> None:
    """Fail if an attack reaches more than is allowed: a gate for continuous integration.

    Each attack under each defense is held to the limits, and what was not tested fails: where a
    verdict of holding would lack something, as an attack that works without the defense. The 95 %
    bound is held to a limit, which with few clients passes none; --compare mean asks less. With
    --smallest the run is judged again by that smallest effect. Options may be repeated. Exit code 1
    says that something leaks more, or was not tested.
    """
    from experiments.analysis.differences import sections
    from experiments.analysis.summary import metric_classes
    from experiments.attest.gate import unmet
    from experiments.report.gate import ScoreLimit, broken

    limits = [
        ScoreLimit(*named_number(text, flag, "rouge1=.3"), most=flag == "--max")
        for flag, texts in (("--max", most), ("--min", least))
        for text in texts or []
    ]
    effects = dict(named_number(text, "--smallest", "rouge=.3") for text in smallest or [])
    if not limits and verbatim is None and not effects:
        if attest:
            _end(unmet(run, attest, model, loss), len(attest), as_json)
        raise ConfigError("check: there is nothing to check. Pass --max rouge1=0.3, for example.")
    for limit in limits:
        if limit.metric not in (known := metric_classes()):
            raise ConfigError(f"{limit.metric!r} is no metric. {suggest(limit.metric, known)}")
        _check_side(limit, known[limit.metric])
    if unknown := sorted(effects.keys() - _EFFECTS):
        raise ConfigError(f"--smallest {unknown[0]!r}: {suggest(unknown[0], _EFFECTS)}")
    load(run)  # says what is wrong with the folder
    sides = sections(run, _judged(run, effects)).values()
    ran = sorted({v.defense for side in sides for v in side.findings.evidence.verdicts})
    if defense not in (None, *ran):
        similar = f"Did you mean {near!r}? " if (near := nearest(str(defense), ran)) else ""
        names = " and ".join("none (no defense)" if n == "none" else n for n in ran)
        raise ConfigError(
            f"--defense {defense!r}: nothing was attacked under it. {similar}The run has {names}."
        )
    lines = list(
        broken(
            sides,
            limits,
            compare=compare,
            verbatim=verbatim,
            smallest=bool(effects),
            defense=defense,
        )
    )
    count = len(limits) + (verbatim is not None) + bool(effects) + len(attest or [])
    _end(lines + (unmet(run, attest, model, loss) if attest else []), count, as_json)


def _end(lines: list[str], count: int, as_json: bool) -> NoReturn:
    said = "\n".join(lines) or f"passed: {count} limit{'s hold' if count > 1 else ' holds'}"
    say(json.dumps({"passed": not lines, "broken": lines}) if as_json else said)
    raise typer.Exit(1 if lines else 0)


def _judged(run: Path, effects: dict[str, float]) -> Findings:
    """The findings of a run by other smallest effects; the rest of its rule stays."""
    from pydantic import ValidationError

    from experiments.plan.config import VerdictRule
    from experiments.plan.folder import read_rules
    from experiments.report.run_results import judged

    try:
        rules = {
            name: VerdictRule.model_validate(rule.model_dump() | effects)
            for name, rule in read_rules(run).items()
        }
    except ValidationError as error:
        raise ConfigError(explain(error, "--smallest")) from None
    return judged(run, rules)


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
