"""One attack compared with its null baselines, and the reasons if the outcome is open."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from operator import itemgetter

from experiments.analysis.evidence import Kind, Reason
from experiments.analysis.keys import VictimKey
from experiments.analysis.paired import Scored, Values, difference, is_attack
from experiments.analysis.statistics import Difference, clopper_pearson
from experiments.plan.config import VerdictRule
from fedsim.records import OTHER_CLIENT, PRIOR_ONLY, AttackKey

NULLS = (PRIOR_ONLY, OTHER_CLIENT)
MOST_CLIENTS = 10_000
"""More clients than these are not asked for: the lead is too near the smallest effect."""


@dataclass(frozen=True, slots=True)
class BaselineComparison:
    """One attack compared with its null baselines.

    Attributes:
        against: metric -> baseline -> mean of the attack less the baseline on the same victims.
        smallest: smallest effect that counts.
        clients: fewest clients with which a mean decides.
        whole: whether ``prior_only`` guessed at every victim of the attack.
    """

    attacker: AttackKey
    against: Mapping[str, Mapping[str, Difference]]
    smallest: float
    clients: int
    whole: bool = True

    @property
    def leaks(self) -> bool:
        """Whether the attack is surely above every baseline by the smallest effect, on all metrics.

        Both baselines must have been run.
        """
        return all(
            all(kind in known and self._above(known[kind]) for kind in NULLS)
            for known in self.against.values()
        )

    @property
    def beats(self) -> bool:
        """Whether the attack is surely above some baseline by the smallest effect."""
        return any(self._above(lead) for known in self.against.values() for lead in known.values())

    @property
    def within(self) -> bool:
        """Whether the lead over some baseline is surely below the smallest effect, on one metric.

        On none may the attack be surely above all of them; nor, where one metric counts alone,
        above any: the update then told something that a better attack might use. Victims without a
        blind guess are compared with none.
        """
        if not self.whole or any(PRIOR_ONLY not in known for known in self.against.values()):
            return False
        small = any(any(map(self._below, known.values())) for known in self.against.values())
        some = all if len(self.against) > 1 else any
        large = any(some(map(self._above, known.values())) for known in self.against.values())
        return small and not large

    def hardest(self, metric: str) -> str | None:
        """The baseline that the attack beats by least in the mean."""
        known = self.against[metric]
        return min(known, key=lambda kind: (known[kind].mean, kind), default=None)

    def most(self, metric: str) -> float | None:
        """The lead over all baselines together is at most this; None without a bound."""
        ends = [lead.high for lead in self.against[metric].values() if lead.high is not None]
        return min(ends, default=None)

    @property
    def reason(self) -> Reason:
        """Why it neither leaks nor stays within: of the metric on which it beats the fewest."""
        metric = min(
            self.against, key=lambda name: sum(map(self._above, self.against[name].values()))
        )
        return self._reason(metric, self.against[metric])

    def reason_of(self, attack: Scored) -> Reason:
        """That the attack, compared on the victims that it did not refuse, may leak these."""
        metric, known = next(iter(self.against.items()))
        of, refused = float(len(attack.values)), float(len(attack.refused))
        least = {"mean": min(lead.mean for lead in known.values())} if known else {}
        numbers = {"of": of, "victims": of - refused} | least
        return Reason(kind="answered", attack=self.attacker, metric=metric, numbers=numbers)

    def _reason(self, metric: str, known: Mapping[str, Difference]) -> Reason:
        lacking = [kind for kind in NULLS if kind not in known]
        if not self.whole:
            return Reason(kind="no_null", baseline=PRIOR_ONLY)
        if PRIOR_ONLY in lacking or (lacking and all(map(self._above, known.values()))):
            return Reason(kind="no_null", baseline="" if len(lacking) > 1 else lacking[0])
        open_ = {kind: lead for kind, lead in known.items() if not self._above(lead)}
        kind, lead = min(open_.items(), key=lambda item: (_low(item[1]), item[0]))
        clients = {"clients": float(lead.clusters)}
        if lead.clusters < self.clients:
            return Reason(kind="few_clients", numbers=clients | {"needed": float(self.clients)})
        why: Kind = "wide"
        numbers = clients
        if lead.low is None or lead.high is None or _is_without_scatter(lead):
            why = "alike"
        elif self._below(lead):
            why = "beats_one"
        else:
            ends = {"mean": lead.mean, "low": lead.low, "high": lead.high}
            numbers = clients | ends | {"needed": self._needed(lead, lead.high)}
        return Reason(kind=why, attack=self.attacker, baseline=kind, metric=metric, numbers=numbers)

    def _needed(self, lead: Difference, high: float) -> float:
        """Clients that would part the interval from the smallest effect, its width as observed."""
        apart = abs(lead.mean - self.smallest)
        half = high - lead.mean if lead.mean < self.smallest else lead.mean - _low(lead)
        needed = lead.clusters * (half / apart) ** 2 if apart else math.inf
        return float(min(math.ceil(needed), MOST_CLIENTS)) if needed < MOST_CLIENTS else math.inf

    def _above(self, lead: Difference) -> bool:
        return lead.clusters >= self.clients and _low(lead) > self.smallest

    def _below(self, lead: Difference) -> bool:
        high = math.inf if lead.high is None else lead.high
        return lead.clusters >= self.clients and high < self.smallest


def compared(
    here: Mapping[str, Sequence[Scored]], by: Sequence[str], rule: VerdictRule, smallest: float
) -> list[BaselineComparison]:
    """Every attack with values for all of these metrics, compared with its baselines."""
    attacks = {metric: [attack for attack in here[metric] if is_attack(attack)] for metric in by}
    names = [attack.attacker for attack in attacks[by[0]]]
    comparisons = []
    for name in names:
        by_metric = {m: attack for m in by for attack in attacks[m] if attack.attacker == name}
        if len(by_metric) == len(by):
            against = {m: _against(attack, here[m], len(names)) for m, attack in by_metric.items()}
            blind = [nulls_of(attack, here[m]).get(PRIOR_ONLY) for m, attack in by_metric.items()]
            whole = all(
                null is None or attack.values.keys() <= null.values.keys()
                for attack, null in zip(by_metric.values(), blind, strict=True)
            )
            comparisons.append(BaselineComparison(name, against, smallest, rule.clients, whole))
    return comparisons


def answered(
    here: Mapping[str, Sequence[Scored]], by: Sequence[str], rule: VerdictRule, smallest: float
) -> list[BaselineComparison]:
    """As ``compared``, on the victims that an attack did not refuse, where it refused some.

    Blind guesses in the place of refused victims would hide a lead over the others. An attack that
    refused most counts only where it is surely above a baseline.
    """
    tried = {a.attacker for m in by for a in here[m] if is_attack(a) and a.refused and a.tried}
    refusing = {a.attacker for m in by for a in here[m] if is_attack(a) and a.refused}
    without = {m: [a.answered if is_attack(a) else a for a in here[m]] for m in by}
    return [
        match
        for match in compared(without, by, rule, smallest)
        if match.attacker in tried or (match.attacker in refusing and match.beats)
    ]


def leaking_parts(
    here: Sequence[Scored], main: str, rule: VerdictRule, smallest: float
) -> Iterator[Reason]:
    """Rounds, seeds or best examples on which alone an attack is surely above its baselines.

    Each round and each seed is corrected for all of them. Of a client's batch the best example by
    each guess is compared with that of the baselines on the same batch.
    """
    attacks = [attack.answered for attack in here if is_attack(attack)]
    for kind in ("round", "seed"):
        parts = sorted({getattr(v, kind) for attack in attacks for v in attack.values})
        for attack, part in product(attacks, parts if len(parts) > 1 else ()):
            values = {v: x for v, x in attack.values.items() if getattr(v, kind) == part}
            leads = _against(replace(attack, values=values), here, len(attacks) * len(parts))
            yield from _alone(kind, attack, leads, main, rule, smallest, part)
    for attack in attacks:
        if len({_batch(victim) for victim in attack.values}) < len(attack.values):
            leads = _against(attack, here, len(attacks), best=True)
            yield from _alone("best", attack, leads, main, rule, smallest)


def _alone(
    kind: Kind,
    attack: Scored,
    leads: Mapping[str, Difference],
    main: str,
    rule: VerdictRule,
    smallest: float,
    part: int = 0,
) -> Iterator[Reason]:
    if BaselineComparison(attack.attacker, {main: leads}, smallest, rule.clients).leaks:
        numbers = {"part": float(part), "mean": min(lead.mean for lead in leads.values())}
        yield Reason(kind=kind, attack=attack.attacker, numbers=numbers)


def _batch(victim: VictimKey) -> VictimKey:
    return victim._replace(example=0, row=-1)


def _best(values: Values) -> Values:
    """The highest value of each batch."""
    ordered = sorted(values.items(), key=itemgetter(1))
    return {_batch(victim): value for victim, value in ordered}


def nulls_of(attack: Scored, here: Iterable[Scored]) -> dict[str, Scored]:
    """The null baselines of an attack among all scores under one defense, by kind."""
    nulls = {}
    for null in here:
        if (null.attacker.attack, null.control) == (PRIOR_ONLY, "none"):
            nulls[PRIOR_ONLY] = null
        elif (null.attacker, null.control) == (attack.attacker, OTHER_CLIENT):
            nulls[OTHER_CLIENT] = null
    return nulls


def _against(
    attack: Scored, here: Iterable[Scored], comparisons: int, *, best: bool = False
) -> dict[str, Difference]:
    leads = {}
    for kind, null in nulls_of(attack, here).items():
        sides = [attack.values, null.values]
        if best:
            both = attack.values.keys() & null.values.keys()
            sides = [_best({victim: side[victim] for victim in both}) for side in sides]
        between = difference(*sides, comparisons=comparisons)
        if between is not None:
            leads[kind] = between
    return leads


def merged(reasons: Iterable[Reason]) -> list[Reason]:
    """Each reason once."""
    distinct: list[Reason] = []
    for reason in reasons:
        if reason not in distinct:
            distinct.append(reason)
    return distinct


def _is_without_scatter(lead: Difference) -> bool:
    """Whether it is 0 at every client: its interval is that of a share of none of so many."""
    nothing = clopper_pearson(0.0, lead.clusters, (1 - lead.level) / 2)[1]
    ends = (lead.mean, lead.low, lead.high)
    return all(
        end is not None and math.isclose(end, value, abs_tol=1e-9)
        for end, value in zip(ends, (0.0, -nothing, nothing), strict=True)
    )


def _low(lead: Difference) -> float:
    return -math.inf if lead.low is None else lead.low
