"""One metric by victim, so that two attacks, or two defenses, are compared on the same examples."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TypeAlias

from experiments.analysis.keys import Attacker, Place
from experiments.analysis.statistics import Difference, Estimate, paired_difference, summary
from fedsim.records import PRIOR_ONLY, ScoreRow

Victim: TypeAlias = tuple[int, int, int, int, int]
"""Seed, client, round, position in the batch and number of the row, -1 where it is not known."""
Values: TypeAlias = Mapping[Victim, float]


@dataclass(frozen=True, slots=True)
class Scored:
    """What one attack got from each victim of one place.

    Attributes:
        values: of all victims. One that the attack refused counts with the prior's guess, which is
            what an attacker has left; it is left out where there is no prior.
        refused: these victims.
    """

    place: Place
    attacker: Attacker
    control: str
    values: Values
    refused: frozenset[Victim] = frozenset()

    @property
    def mean(self) -> float:
        """Over all victims."""
        return fmean(self.values.values())


def scored(rows: Iterable[ScoreRow], labels: Mapping[str, str], metric: str) -> list[Scored]:
    """The attacks on clients that have a value of their own.

    Args:
        rows: of a section.
        labels: cell -> its setting.
        metric: the only one that is read.
    """
    groups: dict[tuple[Place, tuple[str, str, bool], str], dict[Victim, float]] = defaultdict(dict)
    refused: dict[tuple[Place, tuple[str, str, bool], str], set[Victim]] = defaultdict(set)
    priors: dict[Place, Values] = {}
    for row in rows:
        if row.metric == metric and row.probe == "none":
            place = labels[row.cell], row.defense, row.defense_options
            group = place, (row.attack, row.attack_options, row.adaptive), row.control
            number = -1 if row.row is None else row.row
            victim = row.seed, row.client, row.round, row.example, number
            if row.value is not None:
                groups[group][victim] = row.value
                if row.attack == PRIOR_ONLY:
                    priors[place] = groups[group]
            elif row.status == "skipped":
                refused[group].add(victim)
    found = []
    for group, values in sorted(groups.items()):
        place, (attack, options, adaptive), control = group
        known = priors.get(place, {})
        instead = {victim: known[victim] for victim in refused[group] & known.keys()}
        attacker = Attacker(attack=attack, attack_options=options, adaptive=adaptive)
        found.append(Scored(place, attacker, control, {**values, **instead}, frozenset(instead)))
    return found


def difference(one: Values, other: Values, *, comparisons: int = 1) -> Difference | None:
    """The mean of ``one - other`` over the victims of both, clustered by client; None without any.

    A victim is the same only if its row is: a defense that changed the batches pairs with nothing.
    """
    both = sorted(one.keys() & other.keys())
    if not both:
        return None
    return paired_difference(
        [one[victim] for victim in both],
        [other[victim] for victim in both],
        [victim[:2] for victim in both],
        comparisons=comparisons,
    )


def estimate(values: Values) -> Estimate:
    """The mean with its interval, clustered by client."""
    victims = sorted(values)
    found = summary(
        [values[victim] for victim in victims],
        [victim[:2] for victim in victims],
        better="higher",
        seed=0,
    )
    return Estimate.model_validate(found.model_dump(include=set(Estimate.model_fields)))


def portfolio(attacks: Sequence[Scored]) -> Values:
    """Each victim's value by the attack that has the highest mean on the other clients.

    Taking the attack that is best on the victims themselves would flatter the attacker. With one
    client there is nothing to choose by, and nothing is returned.
    """
    victims = {victim for attack in attacks for victim in attack.values}
    chosen: dict[Victim, float] = {}
    for client in sorted({victim[:2] for victim in victims}):
        elsewhere = [(_mean_elsewhere(attack.values, client), attack) for attack in attacks]
        known = [(mean, attack) for mean, attack in elsewhere if mean is not None]
        best = [attack for _, attack in sorted(known, key=lambda pair: -pair[0])]
        # Where the best refused, the next best stands in, and the prior where all did.
        for values in (
            *({v: x for v, x in one.values.items() if v not in one.refused} for one in best),
            *(one.values for one in best),
        ):
            mine = {v: x for v, x in values.items() if v[:2] == client and v not in chosen}
            chosen |= mine
    return chosen


def _mean_elsewhere(values: Values, client: tuple[int, int]) -> float | None:
    others = [value for victim, value in values.items() if victim[:2] != client]
    return fmean(others) if others else None
