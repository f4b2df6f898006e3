"""Limits on what attacks may reach in a run: a gate for continuous integration."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal, TypeAlias

import pandas as pd

from experiments.analysis.frames import ATTACK, PLACE, attacked, by_status, jobs
from experiments.analysis.hits import EXACT_METRIC
from experiments.analysis.keys import DefenseInSetting
from experiments.analysis.paired import Scored, difference, estimate, is_attack, scored
from experiments.analysis.power import counting_effect, shortfall
from experiments.plan.config import VerdictRule
from experiments.stages.coverage import EXACT
from experiments.wording.defense_names import defense_name, spoken
from experiments.wording.names import show, title
from fedsim.records import LOST, MAIN, PRIOR_ONLY, AttackKey

Compared: TypeAlias = Literal["bound", "mean", "client"]
"""The end of the 95 % interval, the mean, or the mean of the worst client."""
_RULE = VerdictRule()


@dataclass(frozen=True, slots=True)
class ScoreLimit:
    """The most that a metric may reach; the least where ``most`` is False."""

    metric: str
    value: float
    most: bool


def broken(
    scores: pd.DataFrame,
    limits: Sequence[ScoreLimit],
    *,
    compare: Compared = "bound",
    verbatim: int | None = None,
    rule: VerdictRule = _RULE,
) -> list[str]:
    """Every limit that does not hold, a line each; what was not tested does not hold.

    Nothing is tested by attacks that return less than a blind guess by more than the smallest
    effect: on the metric of a limit, for exact examples on the main one.

    Args:
        scores: see ``score_frame``.
        limits: on each attack under each defense.
        compare: which number is held to a limit. An interval that is missing holds none.
        verbatim: number of examples under each defense that may come back exactly, by any attack.
        rule: the smallest effect that counts.
    """
    places = [DefenseInSetting(*key) for key, _ in scores.groupby(PLACE)]
    lines = [] if places else ["no attack was run, so that nothing was tested"]
    lines += _lost(scores)
    for limit in limits:
        attacks = _attacks(scores, limit.metric)
        tested = _tested(scores, limit.metric)
        for place in places:
            if place not in tested:
                lines.append(f"{where(place)}: no finished attack has a score of {limit.metric}")
            here = [attack for attack in attacks if attack.place == place]
            lines += [line for attack in here if (line := _over(attack, limit, compare))]
    sides = {limit.metric: limit.most for limit in limits}
    if verbatim is not None:
        lines += _returned(scores, places, verbatim)
        sides = dict.fromkeys(MAIN.values(), True) | sides
    for metric, most in sides.items():
        lines += _below_blind(scores, metric, rule, most=most)
    return lines


def _below_blind(
    scores: pd.DataFrame, metric: str, rule: VerdictRule, *, most: bool
) -> Iterator[str]:
    """Defenses under which no attack comes up to a guess that sees no update."""
    units = scores.unit[scores.metric == metric]
    blind = {guess.place: guess for guess in scored(scores, metric) if _is_blind(guess)}
    attacks = [attack for attack in _attacks(scores, metric) if attack.tried]
    for place, guess in blind.items():
        here = [attack for attack in attacks if attack.place == place]
        leads = [lead for attack in here if (lead := difference(attack.values, guess.values))]
        signed = [lead.mean if most else -lead.mean for lead in leads]
        unit = str(units.iloc[0])
        if missing := shortfall(signed, counting_effect(unit, rule)):
            than = f"{show(missing, unit)}{'' if unit == '1' else f' {unit}'}"
            side = "less" if most else "more"
            yield (
                f"{where(place)}: the attacks return {than} {side} {title(metric)} than a blind "
                "guess, so that nothing was tested"
            )


def _is_blind(guess: Scored) -> bool:
    return guess.control == "none" and guess.attacker.attack == PRIOR_ONLY


def _attacks(scores: pd.DataFrame, metric: str) -> list[Scored]:
    """Attacks that guessed at some victim; the guesses of one that refused others count, too."""
    known = [candidate for candidate in scored(scores, metric) if is_attack(candidate)]
    return [attack for attack in known if len(attack.refused) < len(attack.values)]


def _tested(scores: pd.DataFrame, metric: str) -> set[DefenseInSetting]:
    """Places with an attack that has a finished job and tried half of the victims."""
    done = scores[(scores.status == "done") & scores.has_value & (scores.metric == metric)]
    ran = {
        (DefenseInSetting(*place), AttackKey(attack, options, bool(adaptive)))
        for (*place, attack, options, adaptive), _ in attacked(done).groupby([*PLACE, *ATTACK])
    }
    return {
        attack.place
        for attack in _attacks(scores, metric)
        if (attack.place, attack.attacker) in ran and attack.tried
    }


def _lost(scores: pd.DataFrame) -> Iterator[str]:
    """Attacks with jobs that did not end, whose guesses are blank or too early."""
    for (*place, attack, _, _), rows in attacked(scores).groupby([*PLACE, *ATTACK]):
        counts = by_status(jobs(rows))
        lost, done = sum(counts[status] for status in LOST), counts["done"]
        if lost and attack != PRIOR_ONLY:
            under = where(DefenseInSetting(*place))
            yield f"{attack} {under}: {lost} of {lost + done} jobs failed or were cut short"


def _over(attack: Scored, limit: ScoreLimit, compare: Compared) -> str:
    """Why an attack is over a limit; empty if it is not."""
    parts = [attack]
    if compare == "bound":  # blind guesses at refused victims may hide what the others leak
        parts.append(attack.answered)
    numbers = [_number(part, limit.most, compare) for part in parts]
    known = [number for number in numbers if number is not None]
    whole = len(known) == len(numbers) or not attack.tried
    value = (max if limit.most else min)(known) if known and whole else None
    what = f"{attack.attacker.attack} {where(attack.place)}: {limit.metric}"
    if value is None:
        if not attack.tried:  # mostly the blind guess
            return ""
        why = "clients are too few, or too much alike, for a bound"
        return f"{what} {attack.mean:.3g}, and {why}: pass --compare mean"
    over = value > limit.value if limit.most else value < limit.value
    if not over:
        return ""
    side, than = ("at most", "above") if limit.most else ("at least", "below")
    how = {
        "bound": f"is {side} {value:.3g} at 95 %",
        "mean": f"{value:.3g}",
        "client": f"of the worst client {value:.3g}",
    }[compare]
    return f"{what} {how}, {than} {limit.value:g}"


def _number(attack: Scored, most: bool, compare: Compared) -> float | None:
    if compare == "client":
        by_client: dict[int, list[float]] = {}
        for victim, value in attack.values.items():
            by_client.setdefault(victim.owner, []).append(value)
        return (max if most else min)(map(fmean, by_client.values()))
    if compare == "mean":
        return attack.mean
    known = estimate(attack.values)
    if known.interval_of != "clients":  # examples of one client say nothing of others
        return None
    return known.high if most else known.low


def _returned(
    scores: pd.DataFrame, places: Sequence[DefenseInSetting], allowed: int
) -> Iterator[str]:
    """Defenses under which too many examples are exact or certified as exact."""
    attacks = {metric: _attacks(scores, metric) for metric in EXACT_METRIC.values()}
    tested = set[DefenseInSetting]().union(*(_tested(scores, metric) for metric in attacks))
    for place in places:
        if place not in tested:
            names = " or ".join(EXACT_METRIC.values())
            yield f"{where(place)}: no finished attack has a score of {names}"
        here = [(m, attack) for m in attacks for attack in attacks[m] if attack.place == place]
        scored_exact = {
            victim
            for metric, attack in here
            for victim, value in attack.values.items()
            if victim not in attack.refused and _exact(metric, value)
        }
        claimed = {v for _, attack in here for v in attack.certified} - scored_exact
        exact = scored_exact | claimed
        if len(exact) > allowed:
            came = "example" if len(exact) == 1 else "examples"
            how = "came back verbatim or certified" if claimed else "came back verbatim"
            yield f"{where(place)}: {len(exact)} {came} {how}, above {allowed}"


def _exact(metric: str, value: float) -> bool:
    return value <= EXACT[metric] if metric == "mse" else value >= EXACT[metric]


def where(place: DefenseInSetting) -> str:
    """``under gaussian noise (std=0.001) at batch 4``."""
    name = spoken(defense_name(*place[1:]))
    return f"under {name}{f' at {place.setting}' if place.setting else ''}"
