"""Leakage at a stated loss of utility, and compared with DP-SGD of equal utility.

A family is one defense in one setting; its members differ in their options. Between two members a
and b that lose shares l_a <= l <= l_b of the utility, leakage is interpolated for each victim v:

    value(v) = (1 - s) * value_a(v) + s * value_b(v),   s = (l - l_a) / (l_b - l_a)

so that the interval of the mean is that of paired victims. Utility is taken as known, without
error. A family of two members or more has no defense as its weakest member.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import isfinite
from statistics import fmean

from experiments.analysis.evidence import AtLoss, EqualUtility, Verdict
from experiments.analysis.findings import UTILITY
from experiments.analysis.keys import DefenseInSetting, FamilyKey, undefended
from experiments.analysis.paired import Scored, Values, difference, estimate
from experiments.wording.defense_names import family, strength
from experiments.wording.names import show

LOSS = 0.02
DP_SGD = "dp_sgd"


@dataclass(frozen=True, slots=True)
class TradeoffPoint:
    """One defense: its cost, and the value of each victim under the strongest attack on it.

    Attributes:
        name: options that tell it from others of its family, or the name of the defense.
        loss: lost share of the utility without a defense; negative if utility rises.
    """

    place: DefenseInSetting
    name: str
    loss: float
    values: Values


def points(
    verdicts: Sequence[Verdict],
    attacks: Iterable[Scored],
    utility: Mapping[DefenseInSetting, Mapping[str, float] | None],
) -> list[TradeoffPoint]:
    """Every attacked defense whose utility can be compared with that of no defense.

    Models that diverged are left out.
    """
    known = {(attack.place, attack.attacker): attack.values for attack in attacks}
    bases = undefended(utility)
    tradeoff = []
    for verdict in verdicts:
        here, place = utility[verdict.place], bases.get(verdict.setting)
        base = utility[place] if place else None
        loss = loss_of(here, base) if here and base else None
        if loss is not None and isfinite(loss) and verdict.strongest is not None:
            values = known[verdict.place, verdict.strongest.attacker]
            members = [
                other.defense_options
                for other in verdicts
                if other.place.family == verdict.place.family
            ]
            label = strength(verdict.defense, verdict.defense_options, members)
            tradeoff.append(
                TradeoffPoint(verdict.place, label or family(verdict.defense), loss, values)
            )
    return tradeoff


def loss_of(here: Mapping[str, float], base: Mapping[str, float]) -> float | None:
    """Lost share of ``base``; None if that is meaningless, as for an MCC of 0."""
    name = next((name for name in UTILITY if name in here and name in base), None)
    if name is None or not base[name] > 0:
        return None
    change = (here[name] - base[name]) / base[name]
    return 0.0 - change if UTILITY[name] == "higher" else change


def at_loss(line: Sequence[TradeoffPoint]) -> Iterator[AtLoss]:
    """The least leakage of each family at a cost of at most ``LOSS``."""
    for family_key, members in _families(line).items():
        values, how = _at(members, LOSS)
        yield AtLoss(
            **family_key._asdict(),
            loss=LOSS,
            leakage=estimate(values) if values else None,
            how=how,
        )


def equal_utility(line: Sequence[TradeoffPoint]) -> Iterator[EqualUtility]:
    """The leakage of DP-SGD at the utility of each other defense; the intervals hold together.

    Members of DP-SGD that cost more than another and leak no less are left out, since nobody would
    choose them.
    """
    families = _families(line)
    compared = [
        (point, reference)
        for point in line
        if (reference := families.get(FamilyKey(point.place.setting, DP_SGD)))
        and point.place.defense not in ("none", DP_SGD)
    ]
    for point, reference in compared:
        values, how = _between(_efficient(reference), point.loss)
        both = point.values.keys() & (values or point.values).keys()
        yield EqualUtility(
            **point.place._asdict(),
            leakage=fmean(point.values[victim] for victim in both) if both else None,
            dp_sgd=fmean(values[victim] for victim in both) if values and both else None,
            difference=difference(point.values, values, comparisons=len(compared))
            if values
            else None,
            how=how if both else f"{how}: no victim in common",
        )


def _efficient(members: Iterable[TradeoffPoint]) -> list[TradeoffPoint]:
    """The members, ordered by loss, that leak less than every cheaper one."""
    chosen: list[TradeoffPoint] = []
    for member in members:
        if not chosen or fmean(member.values.values()) < fmean(chosen[-1].values.values()):
            chosen.append(member)
    return chosen


def _families(line: Sequence[TradeoffPoint]) -> dict[FamilyKey, list[TradeoffPoint]]:
    """The members of each family by loss, no defense at the weak end."""
    bases = {point.place.setting: point for point in line if point.place.defense == "none"}
    by_family = {}
    for key in dict.fromkeys(point.place.family for point in line):
        members = [point for point in line if point.place.family == key]
        if key.defense != "none":
            drawn = len(members) > 1 or key.defense == DP_SGD
            ends = [bases[key.setting]] if drawn else []
            by_family[key] = sorted([*members, *ends], key=lambda point: (point.loss, point.place))
    return by_family


def _at(members: Sequence[TradeoffPoint], loss: float) -> tuple[Values | None, str]:
    """Values of the least leaky member within ``loss``.

    Interpolated between neighbours if that leaks less.
    """
    within = [member for member in members if member.loss <= loss]
    if not within:
        return None, f"{members[0].name} costs {_percent(members[0].loss)} already"
    best = min(within, key=lambda member: fmean(member.values.values()))
    if len(within) < len(members):
        values, how = _between(members, loss)
        if values and fmean(values.values()) < fmean(best.values.values()):
            return values, how
    least = "" if len(members) == 1 else ", the least leaky that costs no more"
    return best.values, f"{best.name} costs {_percent(best.loss)}{least}"


def _between(members: Sequence[TradeoffPoint], loss: float) -> tuple[Values | None, str]:
    """Values interpolated linearly between the two members around ``loss``."""
    for weak, strong in pairwise(members):
        if weak.loss <= loss <= strong.loss:
            width = strong.loss - weak.loss
            share = (loss - weak.loss) / width if width else 1.0
            both = weak.values.keys() & strong.values.keys()
            values = {v: (1 - share) * weak.values[v] + share * strong.values[v] for v in both}
            ends = (f"{end.name} ({_percent(end.loss)})" for end in (weak, strong))
            how = f"between {' and '.join(ends)}"
            return values or None, how if values else f"{how}: no victim in common"
    low, high = members[0].loss, members[-1].loss
    return (
        None,
        f"out of range: leakage is known for losses from {_percent(low)} to {_percent(high)}",
    )


def _percent(share: float) -> str:
    return f"{show(100 * share, 'points')} %"
