"""Which victims passed a bar, exactness or a threshold, where no null baseline did."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from experiments.analysis.evidence import Clients
from experiments.analysis.keys import VictimKey
from experiments.analysis.paired import Scored, is_attack
from experiments.analysis.statistics import Ends, clopper_pearson
from experiments.stages.coverage import EXACT, EXACT_PSNR, THRESHOLDS
from fedsim.records import MAIN, PRIOR_ONLY, AttackKey, Modality

EXACT_METRIC: dict[Modality, str] = {"image": "mse", "text": "exact_match"}
EXACT_MAIN = {"psnr": EXACT_PSNR, "rougeL": 1.0 - 1e-9}
"""Exact by the main metric, where the metric of exactness was not scored."""
CLOSE = {"psnr": 25.0, "rougeL": 0.6}
"""A null baseline that comes so close to any victim may hit another exactly by chance, as short
texts of frequent words are hit. Halved, blind guesses at ordinary sentences (.3) count as close,
and a single exact sentence decides nothing; doubled, none do, and 2.5 % of the blind guesses at
texts of three to six words are called."""


@dataclass(frozen=True, slots=True)
class Hits:
    """What passed a bar under one attack.

    Attributes:
        hit: victims on which the attack passed.
        blind: victims on which a null baseline of the attack passed.
        certified: victims whose guess the attack certified.
        guessable: whether a null baseline comes close to exactness on some victim.
        compared: whether a null baseline was run.
    """

    attacker: AttackKey
    hit: frozenset[VictimKey]
    blind: frozenset[VictimKey]
    certified: frozenset[VictimKey]
    guessable: bool = False
    compared: bool = True

    @property
    def gained(self) -> frozenset[VictimKey]:
        """Victims on which the attack passed and no null baseline did."""
        return self.hit - self.blind

    def shown(self, comparisons: int) -> bool:
        """Whether clients gained outnumber clients lost beyond chance: the exact sign test."""
        from scipy.stats import binomtest

        lost = self.blind - self.hit
        more, less = _apart(self.gained, lost), _apart(lost, self.gained)
        if not more or not self.compared:
            return False
        p = binomtest(more, more + less, alternative="greater").pvalue
        return float(p) <= 0.025 / comparisons


def owners(victims: Iterable[VictimKey]) -> frozenset[int]:
    """The clients whose examples these are."""
    return frozenset(victim.owner for victim in victims)


def independent(victims: Iterable[VictimKey]) -> int:
    """Number of their clients, or of their rows if these are fewer: clients may hold the same."""
    known = list(victims)
    rows = {victim.row if victim.row >= 0 else victim for victim in known}
    return min(len(owners(known)), len(rows))


def _apart(victims: Iterable[VictimKey], others: Iterable[VictimKey]) -> int:
    """Independent victims of clients without any of the others."""
    shared = owners(others)
    return independent(victim for victim in victims if victim.owner not in shared)


def exact_hits(known: Mapping[str, Sequence[Scored]], modality: Modality) -> list[Hits]:
    """Victims that came back exactly, for each attack; by the main metric if no other was scored.

    Args:
        known: metric -> values by attack, of one defense, controls included.
        modality: decides the metrics.
    """
    metric, main = EXACT_METRIC[modality], MAIN[modality]
    if known.get(metric):
        sign = -1.0 if metric == "mse" else 1.0
        exact = _hits(known[metric], sign * EXACT[metric], sign)
    else:
        exact = _hits(known.get(main, ()), EXACT_MAIN[main], 1.0)
    close = {hit.attacker: bool(hit.blind) for hit in _hits(known.get(main, ()), CLOSE[main], 1.0)}
    return [replace(hits, guessable=close.get(hits.attacker, False)) for hits in exact]


def recovered_hits(known: Mapping[str, Sequence[Scored]], modality: Modality) -> list[Hits]:
    """Victims that passed the threshold of the main metric, for each attack."""
    main = MAIN[modality]
    return _hits(known.get(main, ()), THRESHOLDS[main], 1.0)


def verbatim(hits: Hits, comparisons: int) -> frozenset[VictimKey]:
    """Victims of ``exact_hits`` that count as verbatim leaks.

    A certificate that is true is a proof. Without one, an exact example counts if no null baseline
    comes close to any, or if the attack has more of them than chance explains; where none was run,
    nothing tells chance.
    """
    if (hits.compared and not (hits.blind or hits.guessable)) or hits.shown(comparisons):
        return hits.gained | (hits.hit & hits.certified)
    return hits.hit & hits.certified


def counted(
    victims: Collection[VictimKey], of: Collection[VictimKey], answered: Collection[VictimKey]
) -> Clients:
    """The clients of these victims as a share of all clients.

    Args:
        victims: on which an attack passed.
        of: all victims; the share is at least that of their clients.
        answered: those that some attack did not refuse; it is at most that of their clients.
    """
    hit = len(owners(victims))
    low, high = _ends(hit, of)[0], _ends(hit, answered)[1]
    return Clients(hit=hit, of=len(owners(of)), examples=len(victims), low=low, high=high)


def _ends(hit: int, victims: Collection[VictimKey]) -> Ends:
    """Interval of the share of clients, each end one-sided at 95 %."""
    trials = independent(victims)
    return clopper_pearson(hit * trials / max(len(owners(victims)), 1), trials, error=0.1)


def _hits(known: Sequence[Scored], bar: float, sign: float) -> list[Hits]:
    def passed(attempt: Scored) -> frozenset[VictimKey]:
        return frozenset(victim for victim, x in attempt.values.items() if sign * x >= bar)

    return [
        Hits(
            attack.attacker,
            passed(attack) - attack.refused,
            frozenset[VictimKey]().union(
                *(passed(attempt) for attempt in known if _is_null(attempt, attack))
            ),
            attack.certified,
            compared=any(_is_null(attempt, attack) for attempt in known),
        )
        for attack in known
        if is_attack(attack)
    ]


def _is_null(candidate: Scored, attack: Scored) -> bool:
    """Whether this is a guess that did not see the victim: the prior's, or of another update."""
    prior = (candidate.attacker.attack, candidate.control) == (PRIOR_ONLY, "none")
    return prior or (candidate.attacker == attack.attacker and candidate.control != "none")
