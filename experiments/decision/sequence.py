"""Bounds of means of scores in [0, 1]: by betting, valid whenever one looks, or of a fixed number.

Of clients whose number is fixed before any is attacked the bounds are Clopper and Pearson's, which
hold for any scores in [0, 1] and are nearer for shares of which none is hit.

By betting:

A gambler who bets that the mean is below m holds after n clients, for a bet of ``b``,

    K_n(m) = prod_i (1 + b (m - x_i) / (1 - m)),   0 <= b <= 1.

If the mean is m or more, no bet makes money on average, so that the capital exceeds 1 / error at
any time with at most that probability (Ville 1939), however the scores are distributed. The bound
is the least m at which it has (Waudby-Smith and Ramdas 2023, "Estimating means of bounded random
variables by betting", whose grid of fixed bets this is). For scores that are 0 or 1 it is a
confidence sequence of a Bernoulli rate.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from experiments.analysis.statistics import Floats, clopper_pearson

BETS = ((1.0, 0.5), (0.75, 0.2), (0.5, 0.15), (0.25, 0.1), (0.1, 0.05))
"""Size of a bet and its share of the stake. Half is on the boldest, which loses all with one score
of 1 and is the best where scores hardly differ: there it costs log 2 of the log 80 to log 1000
that are asked for. Equal shares cost log 5; the boldest alone would never forgive a client."""
_GRID = 32
_ZOOMS = 3
"""A bound is searched on a grid, so many times around the place before: to 1 / 32^3, outward."""


def upper(scores: Sequence[float], error: float) -> float:
    """Smallest m that the mean was surely below at some time; 1 if there is none.

    Args:
        scores: of one client after another, in [0, 1]; independent, of any distribution.
        error: probability that the mean ever is at or above the bound.
    """
    values = np.asarray(scores, dtype=np.float64)
    low, high = 0.0, 1.0
    for _ in range(_ZOOMS if values.size else 0):  # the capital grows with m
        inner = np.linspace(low, high, _GRID + 1)[1:-1]
        enough = np.flatnonzero(_most(values, inner) >= 1 / error)
        first = int(enough[0]) if enough.size else len(inner)
        low, high = (low, *inner, high)[first], (low, *inner, high)[first + 1]
    return float(high)


def lower(scores: Sequence[float], error: float) -> float:
    """Largest m that the mean was surely above at some time; 0 if there is none."""
    return 1.0 - upper([1.0 - score for score in scores], error)


def _most(values: Floats, means: Floats) -> Floats:
    """For each mean, the largest capital so far of the bet that the truth is below it."""
    gains = (means[:, None] - values) / (1 - means[:, None])
    capital = np.zeros_like(gains)
    with np.errstate(over="ignore"):  # of thousands of clients it may be infinite, which is enough
        for bet, share in BETS:
            capital += share * np.cumprod(1 + bet * gains, axis=1)
    most: Floats = capital.max(axis=1)
    return most


class Bound(NamedTuple):
    """One-sided bounds of a mean by scores, each wrong with at most the error that is given."""

    upper: Callable[[Sequence[float], float], float]
    lower: Callable[[Sequence[float], float], float]


BETTING = Bound(upper, lower)
EXACT = Bound(
    lambda scores, error: clopper_pearson(sum(scores), len(scores), 2 * error)[1],
    lambda scores, error: clopper_pearson(sum(scores), len(scores), 2 * error)[0],
)
"""Of a number of clients that was fixed before any was attacked."""
