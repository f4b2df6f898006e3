"""Whether attacks that found nothing would have found a leak: what a word of holding rests on."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from experiments.analysis.evidence import Kind, Reason
from experiments.analysis.keys import DefenseInSetting
from experiments.analysis.membership import Finding
from experiments.analysis.paired import Scored, difference, estimate, is_attack
from experiments.analysis.portfolio import blind_guess
from experiments.plan.entries import allows_for
from experiments.stages.search_errors import SearchErrors
from fedsim.records import AttackKey

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

    @classmethod
    def by_attack(cls, known: Iterable[SearchErrors]) -> dict[AttackKey, Search]:
        """Over all trainings of one defense; the excess is that of the one that missed most."""
        parts: dict[AttackKey, list[SearchErrors]] = defaultdict(list)
        for errors in known:
            parts[errors.attacker].append(errors)
        return {
            key: cls(
                sum(part.missed for part in mine),
                sum(part.errors for part in mine),
                max(reversed(mine), key=lambda part: part.errors).excess or 0.0,
                mine[0].unit,
            )
            for key, mine in parts.items()
        }


def fitting(attacks: Iterable[Scored], place: DefenseInSetting) -> list[Scored]:
    """Attacks that tried the victims, under a defense those that model it."""
    bare, options = place.defense == "none", place.defense_options
    return [a for a in attacks if a.tried and (bare or allows_for(a.attacker, options))]


def powerless(
    place: DefenseInSetting,
    attacks: Sequence[Scored],
    here: Sequence[Scored],
    working: Collection[AttackKey],
    smallest: float,
) -> Iterator[Reason]:
    """Why the attacks on a defense, finding nothing, would show nothing.

    Below a blind guess an attack has not read what is there, as where it returns an empty text.

    Args:
        place: the defense and its setting.
        attacks: on it, by the main metric.
        here: the same with controls and the blind guess.
        working: attacks that are shown to leak undefended victims.
        smallest: smallest effect that counts.
    """
    known, blind = fitting(attacks, place), blind_guess(here)
    controls = [attack for attack in known if attack.attacker in working]
    if not any(attack.tried for attack in attacks):
        yield Reason(kind="hardly_tested")
    elif not known:
        yield Reason(kind="no_adaptive")
    elif not controls:
        yield Reason(kind="no_control")
    elif blind is not None:
        leads = [difference(attack.values, blind.values) for attack in controls]
        best = max((lead.mean for lead in leads if lead), default=0.0)
        if place.defense != "none" and not any(blind.values.values()):
            yield Reason(kind="no_blind")
        elif best < -smallest:
            yield Reason(kind="below_blind", numbers={"mean": best})


def noted(
    place: DefenseInSetting, attacks: Sequence[Scored], working: Mapping[AttackKey, str]
) -> Iterator[Reason]:
    """That what a word of holding rests on was shown to work in another setting alone."""
    known = [attack.attacker for attack in fitting(attacks, place)]
    settings = {key: working[key] for key in known if key in working}
    if place.setting not in settings.values():
        attack, where = next(iter(settings.items()))
        yield Reason(kind="foreign_control", attack=attack, setting=where)


def ended_early(searches: Mapping[AttackKey, Search]) -> Iterator[Reason]:
    """Searches that missed what the updates tell, in too many of them."""
    for attack, search in searches.items():
        if search.errors > MISSED * search.updates:
            counts = {"errors": float(search.errors), "updates": float(search.updates)}
            numbers = counts | {"excess": search.excess}
            yield Reason(kind="search_errors", attack=attack, metric=search.unit, numbers=numbers)


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


def unlike_planted(attacks: Iterable[Scored], planted: Iterable[Scored]) -> Iterator[Reason]:
    """Attacks that surely read more of planted rows than of the clients' under the same defense."""
    known = {(a.place, a.attacker): estimate(a.values) for a in planted if is_attack(a)}
    for attack in attacks:
        private, other = estimate(attack.values), known.get((attack.place, attack.attacker))
        if (
            other
            and other.low is not None
            and private.high is not None
            and other.low > private.high
        ):
            numbers = {"planted": other.mean, "mean": private.mean, "victims": float(other.n)}
            yield Reason(kind="planted", attack=attack.attacker, numbers=numbers)
