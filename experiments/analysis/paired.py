"""One metric by victim, so that two attacks or two defenses are compared on the same examples."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import fsum
from statistics import fmean
from typing import TypeAlias

import pandas as pd

from experiments.analysis.frames import ATTACK, PLACE, victims
from experiments.analysis.keys import DefenseInSetting, VictimKey
from experiments.analysis.statistics import FEW, Difference, Estimate, mean, paired_difference
from fedsim.records import CONTROLS, CUT, LOST, PRIOR_ONLY, AttackKey

Values: TypeAlias = Mapping[VictimKey, float]


@dataclass(frozen=True, slots=True)
class Scored:
    """What one attack got from each victim of one defense in one setting.

    Attributes:
        values: by victim. A victim that the attack refused counts with the prior's guess, which is
            what an attacker would be left with; without a prior it is left out.
        refused: these victims.
        certified: victims whose guess the attack certified as exact.
    """

    place: DefenseInSetting
    attacker: AttackKey
    control: str
    values: Values
    refused: frozenset[VictimKey] = frozenset()
    certified: frozenset[VictimKey] = frozenset()

    @property
    def mean(self) -> float:
        """Mean over all victims."""
        return fmean(self.values.values())

    @property
    def answered(self) -> Scored:
        """The same without the victims that it refused."""
        values = {victim: x for victim, x in self.values.items() if victim not in self.refused}
        return replace(self, values=values, refused=frozenset())

    @property
    def tried(self) -> bool:
        """Whether it refused no more than half of the victims."""
        return 2 * len(self.refused) <= len(self.values)


def is_attack(candidate: Scored) -> bool:
    """Whether this is an attack, not a control or the baseline that sees no update."""
    return candidate.control == "none" and candidate.attacker.attack != PRIOR_ONLY


def scored(scores: pd.DataFrame, metric: str, probe: str = "none") -> list[Scored]:
    """Every attack on clients, controls included, with at least one value of its own.

    Null guesses that the clock or a budget ended stand beside such guesses alone, the others beside
    others: exchangeable if nothing is read.

    Args:
        scores: see ``score_frame``.
        metric: the metric to read.
        probe: of clients, or the kind of probes.
    """
    measured = scores[(scores.metric == metric) & (scores.probe == probe)]
    measured, attacks = measured[~_unlike(measured)], []
    for place, here in measured.groupby(PLACE):
        prior = _values(here[here.attack == PRIOR_ONLY])
        for (attack, options, adaptive, control), rows in here.groupby([*ATTACK, "control"]):
            values = _values(rows)
            refused = set(victims(rows[~rows.has_value & (rows.status == "skipped")]))
            instead = {victim: prior[victim] for victim in refused & prior.keys()}
            if values:
                attacker = AttackKey(attack, options, bool(adaptive))
                sure = rows[rows.certified.fillna(False).astype(bool)]
                both, certified = {**values, **instead}, frozenset(victims(sure))
                key = DefenseInSetting(*place)
                attacks.append(Scored(key, attacker, control, both, frozenset(instead), certified))
    return attacks


def _unlike(scores: pd.DataFrame) -> pd.Series[bool]:
    """Null guesses that did not end as the victim's own job did, or failed."""
    matching, null = scores.control == "none", scores.control.isin(CONTROLS)
    cut = scores.status.isin(CUT)
    whose = [scores[name] for name in ("cell", *ATTACK, "round", "client")]
    too = (matching & cut).groupby(whose, observed=True).transform("any")
    blind = ~matching | (scores.attack == PRIOR_ONLY)
    return (null & (cut != too)) | (blind & scores.status.isin(LOST) & ~(null & cut))


def _values(scores: pd.DataFrame) -> dict[VictimKey, float]:
    known = scores[scores.has_value]
    return dict(zip(victims(known), known.value.tolist(), strict=True))


def difference(
    first: Values, other: Values, *, comparisons: int = 1, fewest: int = FEW
) -> Difference | None:
    """Mean of ``one - other`` over the victims of both, clustered by client; None without any.

    Two victims are the same only if their rows are: a defense that changed the batches has no
    victim in common with one that did not.
    """
    both = sorted(first.keys() & other.keys())
    if not both:
        return None
    return paired_difference(
        [first[victim] for victim in both],
        [other[victim] for victim in both],
        [victim.owner for victim in both],
        comparisons=comparisons,
        fewest=fewest,
        rows=[victim.row for victim in both],
    )


def estimate(values: Values, error: float = 0.05) -> Estimate:
    """Mean with its interval at level 1 - ``error``, clustered by client."""
    ordered = sorted(values)
    clients, rows = ([getattr(v, name) for v in ordered] for name in ("owner", "row"))
    return mean([values[victim] for victim in ordered], clients, error=error, rows=rows)


def portfolio(attacks: Sequence[Scored]) -> Values:
    """Value of each victim under the attack with the highest mean on all other clients.

    An attacker who owns several attacks must choose one without knowing the answer. Taking the
    maximum per victim would overstate the leakage: the maximum of k noisy attacks exceeds each of
    them even if none works. Leaving one client out, as in cross-validation, for client c

        value(v) = values[a*(c)](v),   a*(c) = argmax_a mean of values[a] over clients other than c

    makes choice and measurement independent, so that attacks without effect gain nothing. If a*(c)
    refused v, the next best attack takes its place, and the prior if all refused. With one client
    there is nothing to choose by, and the result is empty.
    """
    split = [(attack, _by_owner(attack.values)) for attack in attacks]
    sums = [
        {owner: fsum(by_owner.values()) for owner, by_owner in parts.items()} for _, parts in split
    ]
    totals = [fsum(by_owner.values()) for by_owner in sums]
    chosen: dict[VictimKey, float] = {}
    for client in sorted({owner for _, parts in split for owner in parts}):
        known = []
        for (attack, parts), by_owner, total in zip(split, sums, totals, strict=True):
            mine = parts.get(client, {})
            if others := len(attack.values) - len(mine):
                known.append(((total - by_owner.get(client, 0.0)) / others, attack, mine))
        best = sorted(known, key=lambda candidate: -candidate[0])
        answered = [
            {v: x for v, x in mine.items() if v not in attack.refused} for _, attack, mine in best
        ]
        for values in (*answered, *(mine for *_, mine in best)):
            chosen |= {v: x for v, x in values.items() if v not in chosen}
    return chosen


def _by_owner(values: Values) -> dict[int, dict[VictimKey, float]]:
    parts: dict[int, dict[VictimKey, float]] = defaultdict(dict)
    for victim, value in values.items():
        parts[victim.owner][victim] = value
    return parts
