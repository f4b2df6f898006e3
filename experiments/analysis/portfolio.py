"""All attacks on a defense as one attack, compared with what they make of other clients' updates.

An attacker runs all of them. Of victim v let the lead of attack a be its value less that of the
blind guess. The portfolio takes the attack whose lead stands out most,

    z[a](v) = (lead[a](v) - median[a]) / scale[a],

and so does its null, of the guesses that the same attacks make from another client's update: one
or two derangements, over the rounds where a client is alone in its round. Median and scale
are of own leads and null leads together. Where no attack reads its update, value and null are
exchangeable at each victim, however many attacks there are: they are one comparison.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pandas as pd

from experiments.analysis.evidence import Kind, Reason
from experiments.analysis.keys import VictimKey
from experiments.analysis.paired import Scored, difference, portfolio
from experiments.analysis.statistics import Difference, Floats
from fedsim.records import OTHER_CLIENT, PRIOR_ONLY, SECOND_CLIENT, AttackKey

NULLS = (PRIOR_ONLY, OTHER_CLIENT)
MOST_CLIENTS = 10_000
"""More clients than these are not asked for: the lead is too near the smallest effect."""
ERROR = 0.025
"""One-sided error of each route to a leak by leads. Halved, a minority of clients takes one more
of them; doubled, one less (five for six)."""
_ALONE = 2.0
"""A client stands out alone by so many smallest effects: 2 dB, or one word of ten. Halved, leads of
.9 dB that scatter by .1 are a leak of every sixth client; doubled, a minority at 3 dB is none."""
_EXCUSED = 20
"""Every so many clients one null lead is excused, as from an update of the same or of a twin's row.
Halved, a tenth of all clients may be read unseen; doubled, two twins of fifty hide a minority."""
_FIRST = 0.625
"""Share of the error for leads above all null ones; the rest is for those above all but the excused
ones. Halved, a minority takes one more client; doubled, nothing is left."""
_DOUBT = 0.15
"""Chance of so many leads above all but the excused null ones, below which no leak is denied: three
beside none, six beside two. Halved, six of a hundred clients beside two twins are; doubled, attacks
that scatter by 2 dB and read nothing keep every tenth verdict open."""
_ALIKE = 1e-9
"""A mean lead below is none at all."""
_LEAST_ROOM = 0.02
"""A text that a blind guess has up to this share has no room for leads. Halved, a token of a
hundred counts for all that is left; doubled, the one private word of a form of 25 counts as one."""


@dataclass(frozen=True, slots=True)
class Bests:
    """What the portfolio gets from each victim.

    Attributes:
        victims: those with a guess and a blind guess, some of them with null guesses.
        real: value of the chosen attack, ``(victim,)``.
        nulls: of the choice among guesses from another client's update, ``(draw, victim)``; NaN
            where none was made.
        blind: of the blind guess, ``(victim,)``; 0 where none was run.
        falls: how far below the blind guess the chosen attack falls, each of its victims, most
            first, ``(rank, victim)``.
    """

    victims: tuple[VictimKey, ...]
    real: Floats
    nulls: Floats
    blind: Floats
    falls: Floats

    def values(self, of: Floats) -> dict[VictimKey, float]:
        """By victim, where there is one."""
        known = zip(self.victims, of.tolist(), strict=True)
        return {victim: value for victim, value in known if not math.isnan(value)}


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked of a metric.

    Attributes:
        metric: its name; of words, those of the batch that are told and right.
        smallest: smallest effect that counts.
        clients: fewest clients that decide by their leads.
        shares: whether a lead counts as a share of what the blind guess leaves, as of words.
    """

    metric: str
    smallest: float
    clients: int
    shares: bool = False


@dataclass(frozen=True)
class Comparison:
    """The portfolio compared with its null baselines, on one metric.

    Attributes:
        question: what is asked of the metric.
        leads: baseline -> mean of the attacks less the baseline on the same victims. Over the blind
            guess it is that of the attack with the highest mean on all other clients: the best of
            each victim exceeds a blind guess by chance alone.
        whole: whether the blind guess was made at every victim.
        level: one-sided error.
        draws: null guesses at each victim.
        beyond: number of excused null leads -> clients with a lead beyond all others and the noise
            of the attack.
        above: clients with a lead beyond all null leads, or all but excused ones where these leads
            are too many for chance.
        uncompared: attacks without any guess from another client's update.
    """

    question: Question
    leads: Mapping[str, Difference]
    whole: bool
    level: float
    draws: int
    beyond: Mapping[int, frozenset[int]]
    above: frozenset[int]
    uncompared: tuple[AttackKey, ...]

    @property
    def leaks(self) -> bool:
        """Whether the mean is surely above both baselines, or a minority of clients is."""
        return self.mean_leaks or self.minority_leaks

    @property
    def mean_leaks(self) -> bool:
        """Whether the mean is surely above both baselines by the smallest effect."""
        return all(kind in self.leads and self._above(self.leads[kind]) for kind in NULLS)

    @property
    def minority_leaks(self) -> bool:
        """Whether more clients than chance puts there are beyond every null lead.

        Of exchangeable leads, one own and ``draws`` null ones a client, ``a`` own ones are above
        all null ones but the ``k`` highest with a probability of at most that of ``k`` null ones or
        fewer among ``a + k`` (Rosenbaum's test of extremes).
        """
        from scipy.stats import binom

        shares = (_FIRST, 1 - _FIRST) if len(self.beyond) > 1 else (1.0,)
        return PRIOR_ONLY in self.leads and any(
            len(clients) >= self.question.clients
            and binom.cdf(k, len(clients) + k, self.draws / (self.draws + 1)) <= share * self.level
            for share, (k, clients) in zip(shares, self.beyond.items(), strict=False)
        )

    @cached_property
    def within(self) -> bool:
        """Whether the lead over some baseline is surely too small to count, and over none is not.

        Where one is above, the update told something that a better attack might use.
        """
        if not self.whole or PRIOR_ONLY not in self.leads or self.uncompared:
            return False
        leads = self.leads.values()
        return any(map(self._below, leads)) and not any(map(self._above, leads))

    @property
    def most(self) -> float:
        """The mean lead over all baselines together is at most this; infinite without a bound."""
        ends = [lead.high for lead in self.leads.values() if lead.high is not None]
        return min(ends, default=math.inf)

    @property
    def hardest(self) -> str | None:
        """The baseline that is beaten by least in the mean."""
        return min(self.leads, key=lambda kind: (self.leads[kind].mean, kind), default=None)

    @property
    def mean(self) -> float:
        """The least of the mean leads."""
        return min((lead.mean for lead in self.leads.values()), default=-math.inf)

    @property
    def reason(self) -> Reason:
        """Why it neither leaks nor stays within."""
        lacking = [kind for kind in NULLS if kind not in self.leads]
        above = all(map(self._above, self.leads.values()))
        if not self.whole or PRIOR_ONLY in lacking:
            return Reason(kind="no_null", baseline="" if len(lacking) > 1 else PRIOR_ONLY)
        if self.uncompared or (lacking and above):
            attack = self.uncompared[0] if self.uncompared else None
            return Reason(kind="no_null", attack=attack, baseline=OTHER_CLIENT)
        open_ = {kind: lead for kind, lead in self.leads.items() if not self._above(lead)}
        kind, lead = min(open_.items(), key=lambda item: (_low(item[1]), item[0]))
        clients = {"clients": float(lead.clusters)}
        if lead.clusters < (needed := self.question.clients):
            return Reason(kind="few_clients", numbers=clients | {"needed": float(needed)})
        why: Kind = "wide"
        numbers = clients
        if lead.low is None or lead.high is None or abs(lead.mean) < _ALIKE:
            why = "alike"
        elif self._below(lead):
            why = "beats_one"
        else:
            ends = {"mean": lead.mean, "low": lead.low, "high": lead.high}
            numbers = clients | ends | {"needed": self._needed(lead, lead.high)}
        return Reason(kind=why, baseline=kind, metric=self.question.metric, numbers=numbers)

    def _needed(self, lead: Difference, high: float) -> float:
        """Clients that would part the interval from the smallest effect, its width as observed."""
        apart = abs(lead.mean - self.question.smallest)
        half = high - lead.mean if lead.mean < self.question.smallest else lead.mean - _low(lead)
        needed = lead.clusters * (half / apart) ** 2 if apart else math.inf
        return float(min(math.ceil(needed), MOST_CLIENTS)) if needed < MOST_CLIENTS else math.inf

    def _above(self, lead: Difference) -> bool:
        return lead.clusters >= self.question.clients and _low(lead) > self.question.smallest

    def _below(self, lead: Difference) -> bool:
        high = math.inf if lead.high is None else lead.high
        return lead.clusters >= self.question.clients and high < self.question.smallest


def compare(
    attacks: Sequence[Scored], here: Sequence[Scored], question: Question, comparisons: int = 1
) -> Comparison | None:
    """Attacks as one, compared with their baselines among all scores under one defense.

    Args:
        attacks: those of the portfolio, on one metric.
        here: among which their baselines are looked up.
        question: what counts.
        comparisons: questions that share the error.
    """
    if not attacks:
        return None
    blind = blind_guess(here)
    bests = best_of_each(attacks, here, question.smallest)
    leads: dict[str, Difference | None] = {}
    if blind is not None:
        chosen = portfolio(attacks) or {v: x for a in attacks for v, x in a.values.items()}
        leads[PRIOR_ONLY] = difference(chosen, blind.values, comparisons=comparisons)
    beyond, above = dict[int, frozenset[int]](), frozenset[int]()
    if bests is not None:
        other = bests.values(bests.nulls.mean(0))
        over = difference(bests.values(bests.real), other, comparisons=comparisons)
        leads[OTHER_CLIENT] = over
        beyond, above = _outliers(bests, question)
    known = {null.attacker for null in here if null.control == OTHER_CLIENT}
    victims = {victim for attack in attacks for victim in attack.values}
    return Comparison(
        question=question,
        leads={kind: lead for kind, lead in leads.items() if lead is not None},
        whole=blind is None or victims <= blind.values.keys(),
        level=ERROR / comparisons,
        draws=0 if bests is None else len(bests.nulls),
        beyond=beyond,
        above=above,
        uncompared=tuple(a.attacker for a in attacks if a.attacker not in known),
    )


def best_of_each(
    attacks: Sequence[Scored], here: Iterable[Scored], smallest: float
) -> Bests | None:
    """The best of each victim, and of each null draw; None where no attack has any."""
    known = list(here)
    blind = blind_guess(known)
    nulls = {(null.attacker, null.control): null.values for null in known}
    compared = [attack for attack in attacks if (attack.attacker, OTHER_CLIENT) in nulls]
    twice = all((attack.attacker, SECOND_CLIENT) in nulls for attack in compared)
    draws = (OTHER_CLIENT, SECOND_CLIENT) if twice else (OTHER_CLIENT,)
    tables = [
        [attack.values, *(nulls[attack.attacker, draw] for draw in draws)] for attack in compared
    ]
    victims = sorted({v for real, *_ in tables for v in real if blind is None or v in blind.values})
    base = np.array([0.0 if blind is None else blind.values[victim] for victim in victims])
    values = np.array(
        [[[table.get(v, math.nan) for v in victims] for table in of] for of in tables]
    ).reshape(len(tables), len(draws) + 1, len(victims))
    whole = ~np.isnan(values).any(1)  # (attack, victim)
    if not whole.any():
        return None
    paired = whole.any(0)
    values[:, :, paired] = np.where(whole[:, None, paired], values[:, :, paired], math.nan)
    values[:, 1:, ~paired] = math.nan
    values = values[~np.isnan(values).all((1, 2))]
    leads = values - base
    centre = np.nanmedian(leads, axis=(1, 2), keepdims=True)
    spread = 1.4826 * np.nanmedian(np.abs(leads - centre), axis=(1, 2), keepdims=True)
    scores = (leads - centre) / np.maximum(spread, smallest / 4)
    chosen = np.where(np.isnan(scores), -math.inf, scores).argmax(0)  # (own and draws, victim)
    best = np.take_along_axis(values, chosen[None], 0)[0]
    falls = -np.sort(leads[:, 0], axis=1)  # NaN last
    return Bests(tuple(victims), best[0], best[1:], base, falls[chosen[0]].T)


def blind_guess(here: Iterable[Scored]) -> Scored | None:
    """The blind guess among all scores under one defense."""
    kind = (PRIOR_ONLY, "none")
    return next((null for null in here if (null.attacker.attack, null.control) == kind), None)


def jointly(by_metric: Sequence[Sequence[Scored]]) -> list[Scored]:
    """Scores of which each is the least of the leads over the blind guess on several metrics."""
    tables = []
    for here in by_metric:
        guess = blind_guess(here)
        base = {} if guess is None else guess.values
        leads = {
            (o.attacker, o.control): {v: x - base[v] for v, x in o.values.items() if v in base}
            for o in here
        }
        tables.append(leads)
    joint = []
    for attempt in by_metric[0] if by_metric else ():
        parts = [table.get((attempt.attacker, attempt.control), {}) for table in tables]
        shared = set.intersection(*map(set, parts))
        least = {victim: min(part[victim] for part in parts) for victim in shared}
        joint.append(replace(attempt, values=least))
    return [lead for lead in joint if lead.values]


def refusing(
    attacks: Sequence[Scored], here: Sequence[Scored], question: Question
) -> Iterator[tuple[Scored, Comparison]]:
    """Each attack that refused victims, compared on the others alone.

    Blind guesses in the place of refused victims would hide a lead over the others. An attack that
    refused most counts only where it is surely above a baseline.
    """
    for attack in attacks:
        if attack.refused and len(attack.refused) < len(attack.values):
            match = compare([attack.answered], here, question)
            if match is not None and (attack.tried or any(map(match._above, match.leads.values()))):
                yield attack, match


def leaking_parts(
    attacks: Sequence[Scored], here: Sequence[Scored], question: Question
) -> Iterator[Reason]:
    """Rounds or seeds on which alone the mean is surely above its baselines; all share an error."""
    for kind in ("round", "seed"):
        parts = sorted({getattr(v, kind) for attack in attacks for v in attack.values})
        for part in parts if len(parts) > 1 else ():
            some = [
                replace(attack, values=values)
                for attack in attacks
                if (values := {v: x for v, x in attack.values.items() if getattr(v, kind) == part})
            ]
            match = compare(some, here, question, len(parts))
            if match is not None and match.mean_leaks:
                numbers = {"part": float(part), "mean": match.mean}
                yield Reason(kind=kind, numbers=numbers)


def _outliers(bests: Bests, question: Question) -> tuple[dict[int, frozenset[int]], frozenset[int]]:
    """``beyond`` and ``above`` of a ``Comparison``.

    The noise of an attack is how far it falls below a baseline at its worst: where it reads
    nothing, it does so by as much as it exceeds it. Of falls as many are excused as of null leads.
    """
    from scipy.stats import binom

    room = np.maximum(1 - bests.blind, _LEAST_ROOM) if question.shares else 1.0
    leads, nulls = (bests.real - bests.blind) / room, (bests.nulls - bests.blind) / room
    over, margin = leads - nulls.max(0), _ALONE * question.smallest
    holders = _holders(bests.victims)
    tops = pd.DataFrame(nulls.T).groupby(holders).max().to_numpy()  # (client, draw)
    ordered, least = np.sort(tops[~np.isnan(tops)])[::-1], np.sort(over)  # NaN last
    beyond, above = dict[int, frozenset[int]](), frozenset[int]()
    for excused in sorted({0, len(set(holders.tolist())) // _EXCUSED}):
        limit = max(float(ordered[min(excused, len(ordered) - 1)]), 0.0) + margin
        standing = leads > limit
        fall = bests.falls[min(excused, len(bests.falls) - 1)] / room
        apart = (leads > fall + margin) & (over > margin - least[excused])
        beyond[excused] = frozenset(holders[standing & apart].tolist())
        clients, lucky = frozenset(holders[standing].tolist()), int((tops > limit).any(1).sum())
        by_chance = binom.sf(len(clients) - 1, len(clients) + lucky, 1 / (len(nulls) + 1))
        if len(clients) > len(above) and (not excused or by_chance <= _DOUBT):
            above = clients
    return beyond, above


def _holders(victims: Sequence[VictimKey]) -> npt.NDArray[np.intp]:
    """The client of each victim; of clients who hold the same row the first."""
    holder: dict[int, int] = {}
    return np.array(
        [holder.setdefault(v.row, v.owner) if v.row >= 0 else v.owner for v in victims], dtype=int
    )


def _low(lead: Difference) -> float:
    return -math.inf if lead.low is None else lead.low
