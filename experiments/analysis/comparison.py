"""One attack compared with its null baselines, and the reason if the outcome is open."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from experiments.analysis.statistics import Difference, wilson
from experiments.wording.names import title
from fedsim.records import MAIN, OTHER_CLIENT, PRIOR_ONLY, AttackKey

FEW = 5
"""Smallest number of clients for which an interval clustered by client is relied upon."""
RARE = 0.05
"""Largest share of differing clients we tolerate when every attacked client scored the same."""
_ROUNDING = 1e-9
NULLS = {PRIOR_ONLY: "prior only", OTHER_CLIENT: "another client's update"}


@dataclass(frozen=True, slots=True)
class BaselineComparison:
    """One attack compared with its null baselines.

    Attributes:
        against: metric -> baseline -> mean of the attack less the baseline on the same victims.
    """

    attacker: AttackKey
    against: Mapping[str, Mapping[str, Difference]]

    @property
    def beats(self) -> bool:
        """True if the attack is surely above every baseline on every metric."""
        differences = [one for by_null in self.against.values() for one in by_null.values()]
        return bool(differences) and all(_low(one) > _ROUNDING for one in differences)

    def within(self, margin: float) -> bool:
        """True if the attack is within ``margin`` of every baseline on at least one metric.

        It must also not be clearly above the margin on any metric.
        """
        small = [
            bool(by_null) and all(_ends_below(one, margin) for one in by_null.values())
            for by_null in self.against.values()
        ]
        large = [
            bool(by_null) and all(_low(one) > margin for one in by_null.values())
            for by_null in self.against.values()
        ]
        return any(small) and not any(large)

    def beaten(self, metric: str) -> list[str]:
        """Baselines that the attack beats on one metric."""
        return [kind for kind, found in self.against[metric].items() if _low(found) > _ROUNDING]

    @property
    def called(self) -> str:
        """Name of the attack in notes."""
        return title(self.attacker.attack) + (" (adaptive)" if self.attacker.adaptive else "")

    def hardest(self, metric: str) -> str | None:
        """The baseline that the attack beats by least, by the lower end of the interval."""
        known = {kind: _low(found) for kind, found in self.against[metric].items()}
        return min(known, key=lambda kind: (known[kind], kind), default=None)


def reasons(matches: Iterable[BaselineComparison], margin: float, attacks: int) -> Iterable[str]:
    """Why these attacks neither leak nor stay within the margin, one line per reason.

    The reason is that of the metric on which the attack beats the fewest baselines.
    """
    told: dict[str, list[str]] = {}
    for match in matches:
        metric = min(match.against, key=lambda name: len(match.beaten(name)))
        what = "" if metric in MAIN.values() else f"{title(metric)}: "
        told.setdefault(what + _reason(match, metric, margin), []).append(match.called)
    for reason, names in told.items():
        yield reason if len(names) == attacks else f"{', '.join(names)}: {reason}"


def _reason(match: BaselineComparison, metric: str, margin: float) -> str:
    beaten = match.beaten(metric)
    left = [kind for kind in match.against[metric] if kind not in beaten]
    below = [kind for kind in left if _ends_below(match.against[metric][kind], margin)]
    alike = [k for k in left if k not in below and _alike(match.against[metric][k])]
    unsure = [kind for kind in left if kind not in below and kind not in alike]
    if not match.against[metric]:
        return "no null baseline to compare with"
    if any(match.against[metric][kind].clusters < FEW for kind in left):
        return "too few clients"
    parts = [
        f"beats {_listed(beaten)}" if beaten else "",
        f"{'not' if beaten else 'does not beat'} {_listed(below)}" if below else "",
        f"the interval over {_listed(unsure)} is too wide" if unsure else "",
        f"too few clients, all alike against {_listed(alike)}" if alike else "",
    ]
    return ", ".join(filter(None, parts))


def _listed(kinds: Sequence[str]) -> str:
    return " and ".join(name for kind, name in NULLS.items() if kind in set(kinds))


def _ends_below(found: Difference, margin: float) -> bool:
    if found.clusters < FEW or not _high(found) < margin:
        return False
    # Without scatter the interval has no width, however few clients there are.
    return not _alike(found) or wilson(0, found.clusters)[1] < RARE


def _alike(found: Difference) -> bool:
    return _high(found) - _low(found) < _ROUNDING


def _low(found: Difference) -> float:
    return -math.inf if found.low is None else found.low


def _high(found: Difference) -> float:
    return math.inf if found.high is None else found.high
