"""Whether attacks that found nothing would have found a leak: what a word of holding rests on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from experiments.analysis.evidence import Kind, Reason
from experiments.analysis.membership import Finding
from experiments.plan.config import VerdictRule
from experiments.plan.entries import allows_for
from fedsim.records import LOST, AttackKey

MISSED = 0.1
"""Share of updates, of those with an objective, of which the private rows have the better one than
the guess, from which a search ended too early for any word of holding. Halved, one update in twelve
keeps a defense open; doubled, two do not."""
_HIGH_AUC = 0.75
"""Mean AUC, or true positive rate, that no word of holding stands beside, though the members are
too few to show it. Beside four fresh rows a blind attack is above it in 4 % of the draws, above
.625 in 20 % (the mean of four uniform numbers); at 1 nothing would be above it."""


@dataclass(frozen=True, slots=True)
class Search:
    """How far an attack's own objective was searched.

    Attributes:
        updates: with a guess of as many rows as there are, that is not recovered.
        errors: of these, those whose private rows have the better objective: the search missed
            what the update tells (Stahlberg and Byrne 2019).
        excess: median of the guess's objective less that of the private rows.
        unit: of the objective, ``nats`` or none.
    """

    updates: int
    errors: int
    excess: float
    unit: str

    def joined(self, other: Search) -> Search:
        """Both, of two trainings; the excess of the one that missed more."""
        worse = max(self, other, key=lambda search: search.errors)
        updates = self.updates + other.updates
        return Search(updates, self.errors + other.errors, worse.excess, self.unit)


@dataclass(frozen=True, slots=True)
class Power:
    """What is known of the attacks on one defense beside their scores.

    Attributes:
        defense: its name; ``none`` without one.
        options: its options as canonical JSON.
        tried: whether each attack guessed at half of the victims or more.
        working: attacks that are shown to leak undefended victims, and the setting of these.
        leads: of each attack its mean lead over the blind guess.
        searches: of those that have an objective.
        smallest: smallest effect that counts.
    """

    defense: str
    options: str
    tried: Mapping[AttackKey, bool]
    working: Mapping[AttackKey, str]
    leads: Mapping[AttackKey, float]
    searches: Mapping[AttackKey, Search]
    smallest: float

    @property
    def fitting(self) -> list[AttackKey]:
        """Attacks that tried the victims, under a defense those that model it."""
        keys = [key for key, tried in self.tried.items() if tried]
        if self.defense == "none":
            return keys
        return [key for key in keys if allows_for(key, self.options)]

    @property
    def controls(self) -> dict[AttackKey, str]:
        """Those of them that are shown to work without a defense, by which setting."""
        return {key: self.working[key] for key in self.fitting if key in self.working}

    @property
    def _resting(self) -> list[float]:
        return [self.leads[key] for key in self.controls if key in self.leads]

    def lacking(self) -> Iterator[Reason]:
        """What is missing for a word of holding."""
        if not any(self.tried.values()):
            yield Reason(kind="hardly_tested")
        elif not self.fitting:
            yield Reason(kind="no_adaptive")
        elif not self.controls:
            yield Reason(kind="no_control")
        elif missing := shortfall(self._resting, self.smallest):
            yield Reason(kind="below_blind", numbers={"mean": -missing})
        for attack, search in self.searches.items():
            if search.errors > MISSED * search.updates:
                numbers = {
                    "errors": float(search.errors),
                    "updates": float(search.updates),
                    "excess": search.excess,
                }
                yield Reason(
                    kind="search_errors", attack=attack, metric=search.unit, numbers=numbers
                )

    def noted(self, setting: str) -> Iterator[Reason]:
        """What a word of holding says beside itself."""
        known = self.controls
        if setting not in known.values():
            attack, where = next(iter(known.items()))
            yield Reason(kind="foreign_control", attack=attack, setting=where)
        if not self.searches:
            yield Reason(kind="power_unmeasured")


def shortfall(leads: Sequence[float], effect: float) -> float | None:
    """How much less than a blind guess the best of some attacks returns: they test nothing.

    An attack that returns less than an attacker knows without any update, as an empty text, has not
    read what is there; that it fails says nothing of a better one.

    Args:
        leads: of each attack its mean lead over the blind guess; positive where it leaks more.
        effect: smallest effect that counts, in the same units.

    Returns:
        What is missing, above ``effect``; None where an attack comes up to the blind guess, or none
        was compared with one.
    """
    best = max(leads, default=0.0)
    return -best if best < -effect else None


def counting_effect(unit: str, rule: VerdictRule) -> float:
    """Smallest effect that counts on a metric of that unit, in this unit; see ``[verdict]``."""
    if unit == "dB":
        return rule.psnr
    return rule.rouge * (100.0 if unit == "points" else 1.0)


def broken(jobs: Mapping[str, int]) -> int:
    """How many jobs did not end as they should have."""
    return sum(jobs[status] for status in LOST)


def lost(jobs: Mapping[str, int]) -> Iterator[Reason]:
    """Jobs that did not end as they should have."""
    kinds: dict[str, Kind] = {
        "failed": "failed",
        "timeout": "unfinished",
        "exhausted": "exhausted",
        "interrupted": "interrupted",
    }
    for status, kind in kinds.items():
        if jobs[status]:
            yield Reason(kind=kind, numbers={"jobs": float(jobs[status])})


def unsure(members: Finding | None) -> Iterator[Reason]:
    """That members may be told, though it is not shown."""
    if members and not members.tells and (members.mean > _HIGH_AUC or members.lost):
        numbers = {"mean": members.mean, "members": float(members.n), "lost": float(members.lost)}
        yield Reason(kind="members", metric=members.metric, numbers=numbers)
