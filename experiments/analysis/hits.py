"""Examples that passed a bar, exactness or a threshold, where no guess without the update did."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal, TypeAlias

import numpy as np

from experiments.analysis.keys import VictimKey
from experiments.analysis.paired import Scored
from experiments.analysis.portfolio import blind_guess
from experiments.stages.coverage import EXACT, EXACT_PSNR, THRESHOLDS
from fedsim.records import MAIN, OTHER_CLIENT, OTHER_CLIENTS, SECOND_CLIENT, Modality

EXACT_METRIC: dict[Modality, str] = {"image": "mse", "text": "exact_match"}
EXACT_VALUE = {"mse": (-1.0, -EXACT["mse"]), "exact_match": (1.0, EXACT["exact_match"])}
"""Metric -> 1 where more is nearer, else -1; and the exact value times that."""
EXACT_MAIN = {"psnr": EXACT_PSNR, "rougeL": 1.0 - 1e-9}
"""Exact by the main metric, where the metric of exactness was not scored."""
Bar: TypeAlias = Literal["verbatim", "recognisable"]
CLOSE = {"psnr": 22.0, "rougeL": 0.6}
"""An example that a guess without its update comes so close to is guessable, and no evidence.
Halved, ordinary sentences (.3) and most pictures (11 dB) are, and nothing is; doubled, none is, and
an example that is nearly public proves a leak."""
ERROR = 0.025
"""One-sided error of each comparison of hits. Halved, four examples without any chance hit are
asked for in place of three, where there is one null guess at each; doubled, two are not enough
either."""


@dataclass(frozen=True, slots=True)
class Hits:
    """What passed a bar under any attack of a portfolio.

    Attributes:
        hit: victims on which an attack passed that did not refuse them.
        alone: those of them that no guess without the update comes near.
        chance: victims on which a guess from another client's update passed, and that neither the
            attacks nor the blind guess come near.
        proven: those of ``hit`` that the same attack certified.
        certified: victims whose guess an attack certified.
        lacking: victims at which some attack has fewer null guesses, whose hits are not counted.
        draws: null guesses at each other victim; 0 where none was made.
    """

    hit: frozenset[VictimKey]
    alone: frozenset[VictimKey]
    chance: frozenset[VictimKey]
    proven: frozenset[VictimKey]
    certified: frozenset[VictimKey]
    lacking: frozenset[VictimKey]
    draws: int

    def shown(self, error: float = ERROR) -> bool:
        """Whether examples that passed alone are more than chance explains."""
        return bool(self.draws) and exceeds(
            examples(self.alone - self.lacking), examples(self.chance), self.draws, error
        )

    def counted(self, error: float = ERROR) -> frozenset[VictimKey]:
        """Victims that count as leaks: a true certificate is a proof, the others if shown."""
        return self.alone | self.proven if self.shown(error) else self.proven


def exceeds(hits: int, chance: int, draws: int, error: float) -> bool:
    """Whether ``hits`` beside ``chance`` ones of ``draws`` null guesses at each are no chance.

    Where guesses are blind, hits are Poisson with means m and ``draws`` * m. Where chance hits
    nothing, the largest probability of so many over all m,

        max over m of exp(-draws * m) * P(Poisson(m) >= hits),

    is at most twice the error: three hits beside one null guess each (.044), two beside two (.039),
    one beside seven (.049). Where it hits something, the share of own hits is tested given their
    sum (Przyborowski and Wilenski 1940). Together they err in at most three times the error.
    """
    from scipy.stats import binom

    if not hits:
        return False
    if not chance:
        return _by_luck(hits, draws) <= 2 * error
    return float(binom.sf(hits - 1, hits + chance, 1 / (draws + 1))) <= error


@cache
def _by_luck(hits: int, draws: int) -> float:
    from scipy.stats import poisson

    means = np.geomspace(1e-3, 20.0 * hits, 2000)
    return float((np.exp(-draws * means) * poisson.sf(hits - 1, means)).max())


def hits(
    known: Mapping[str, Sequence[Scored]],
    modality: Modality,
    attacks: Sequence[Scored],
    bar: Bar,
) -> Hits:
    """What passed a bar under these attacks.

    Args:
        known: metric -> values by attack, of one defense, controls included.
        modality: decides the metrics.
        attacks: of the portfolio.
        bar: exactness, by the main metric if no other was scored, or the threshold of that.
    """
    attackers, name, exact = {a.attacker for a in attacks}, MAIN[modality], EXACT_METRIC[modality]
    main = known.get(name, ())
    here, sign, limit = main, 1.0, THRESHOLDS[name]
    if bar == "verbatim" and known.get(exact):
        here, sign, limit = known[exact], *EXACT_VALUE[exact]
    elif bar == "verbatim":
        limit = EXACT_MAIN[name]

    def passed(known: Iterable[Scored], limit: float, side: float = 1.0) -> frozenset[VictimKey]:
        return frozenset(
            victim
            for attempt in known
            for victim, value in attempt.values.items()
            if side * value >= limit and victim not in attempt.refused
        )

    def sides(known: Sequence[Scored]) -> tuple[list[Scored], list[Scored], list[Scored]]:
        mine, guess = [o for o in known if o.attacker in attackers], blind_guess(known)
        seen = [attempt for attempt in mine if attempt.control == "none"]
        nulls = [attempt for attempt in mine if attempt.control != "none"]
        return seen, nulls, [] if guess is None else [guess]

    (seen, nulls, blind), (near, near_nulls, near_blind) = sides(here), sides(main)
    hit, lucky = passed(seen, limit, sign), passed(nulls, limit, sign)
    guessable = passed(blind, limit, sign) | passed(near_blind, CLOSE[name])
    draws, lacking = _nulls(attacks, here)
    return Hits(
        hit=hit,
        alone=hit - guessable - lucky - passed(near_nulls, CLOSE[name]),
        chance=lucky - hit - guessable - passed(near, CLOSE[name]),
        proven=frozenset(v for a in seen for v in a.certified & passed([a], limit, sign)),
        certified=frozenset(v for attack in seen for v in attack.certified),
        lacking=lacking,
        draws=draws,
    )


def _nulls(attacks: Sequence[Scored], here: Sequence[Scored]) -> tuple[int, frozenset[VictimKey]]:
    """How many guesses without its update a victim has, by every attack; and which have fewer."""
    known = {(null.attacker, null.control): null.values for null in here}

    def whole(control: str) -> bool:
        return bool(attacks) and all((a.attacker, control) in known for a in attacks)

    controls = [*filter(whole, (OTHER_CLIENT, SECOND_CLIENT))]
    draws = len(controls)
    if whole(OTHER_CLIENTS):
        alone: dict[tuple[int, int], set[int]] = defaultdict(set)
        for victim in known[attacks[0].attacker, OTHER_CLIENTS]:
            alone[victim.seed, victim.round].add(victim.client)
        others = min((len(clients) - 1 for clients in alone.values()), default=0)
        if others > draws:
            draws, controls = others, [OTHER_CLIENTS]
    lacking = (
        a.values.keys() - known[a.attacker, control].keys() for a in attacks for control in controls
    )
    return draws, frozenset().union(*lacking)


def owners(victims: Iterable[VictimKey]) -> frozenset[int]:
    """The clients whose examples these are."""
    return frozenset(victim.owner for victim in victims)


def examples(victims: Iterable[VictimKey]) -> int:
    """How many different rows these are; rows that are not known differ."""
    return len({victim.row if victim.row >= 0 else victim for victim in victims})
