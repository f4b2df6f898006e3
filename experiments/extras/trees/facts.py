"""What a client's first tree says in closed form: its rows, and labels, by leaf."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from experiments.extras.trees.clients import Victim
from experiments.extras.trees.forest import Array
from experiments.extras.trees.sums import Sums, rates, sums_of
from fedsim.api import ConfigError

_ROUNDED = 2e-3
"""How far a count may lie from a whole number. Sums in float32 leave 1e-4 of a row of a thousand;
half and double of it count the same leaves of the tests."""
_MOST = 100_000


@dataclass(frozen=True, eq=False)
class Facts:
    """What is read before any search.

    Attributes:
        rows: of the client; None if not told.
        leaf_rows: of the leaves of the first own tree, in their order; empty if not told.
        leaf_positive: rows with label 1 of these leaves; empty for a regression.
        proven: whether all counts are whole numbers as far as float32 tells.
    """

    eta: float
    penalty: float
    base_score: float
    rows: int | None
    leaf_rows: Array
    leaf_positive: Array
    proven: bool


def read_facts(victim: Victim, claimed: int | None = None) -> Facts:
    """Read them off the victim's trees.

    Args:
        victim: the client's trees.
        claimed: rows that it states, used where the trees do not tell.

    Raises:
        ConfigError: the base score is hidden, and no number of rows makes counts whole.
    """
    eta, penalty = rates([victim.trees[at] for at in victim.grown])
    first, base = victim.trees[victim.grown[0]], victim.head.base_score
    sums = sums_of(first, eta, penalty)
    leaf = Sums(sums.gradient[first.is_leaf], sums.hessian[first.is_leaf])
    if not np.isfinite(leaf.hessian).all():
        nothing = np.empty(0, np.int64)
        base = 0.5 if base is None else base
        return Facts(eta, penalty, base, claimed, nothing, nothing, proven=False)
    if base is None:
        base = _refined(_hidden(victim, leaf, claimed), leaf)
    return _counted(victim, leaf, (eta, penalty, base))


def _counted(victim: Victim, leaf: Sums, known: tuple[float, float, float]) -> Facts:
    base, logistic = known[2], victim.head.is_logistic
    rows = leaf.hessian / (base * (1 - base) if logistic else 1.0)
    positive = base * rows - leaf.gradient if logistic else rows[:0]
    counts = np.concatenate([rows, positive])
    slack = _ROUNDED * np.maximum(1, np.abs(counts) / 100)
    proven = bool((np.abs(counts - np.round(counts)) < slack).all())
    whole = np.maximum(np.round(rows), 0).astype(np.int64)
    return Facts(*known, int(whole.sum()), whole, np.round(positive).astype(np.int64), proven)


def _hidden(victim: Victim, leaf: Sums, claimed: int | None) -> float:
    """The base score that makes all counts whole: each row has the same hessian."""
    if not victim.head.is_logistic:
        raise ConfigError("trees: a regression's base score is hidden, and no sum tells it.")
    total = float(leaf.hessian.sum())
    for rows in [claimed] if claimed else range(max(len(leaf.hessian), int(4 * total)), _MOST):
        counts = rows * leaf.hessian / total
        share = total / rows
        if share > 0.2501 or np.abs(counts - np.round(counts)).max() > _ROUNDED * max(
            1, rows / 1000
        ):
            continue
        low = (1 - math.sqrt(max(0.0, 1 - 4 * share))) / 2
        fits = {base: _fraction(base * counts - leaf.gradient) for base in (low, 1 - low)}
        return min(fits, key=lambda base: fits[base])
    raise ConfigError("trees: the base score is hidden, and no number of rows makes counts whole.")


def _refined(base: float, leaf: Sums) -> float:
    """The base score by gradients, to which hessians near one half are blind: ``G = N p - Y``."""
    rows = np.round(leaf.hessian / (base * (1 - base)))
    positive = np.round(base * rows - leaf.gradient)
    return float((leaf.gradient + positive).sum() / rows.sum())


def _fraction(counts: Array) -> float:
    """How far counts are from whole numbers, and below zero, at most."""
    return max(float(np.abs(counts - np.round(counts)).max()), -float(counts.min()))
