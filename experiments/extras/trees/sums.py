"""Gradient and hessian sums of nodes, and what the first tree says in closed form by leaf.

With ``w = -G / (H + l)`` at a node and its children, ``G = G_1 + G_2`` and ``H = H_1 + H_2``, the
gain ``w_1^2 (H_1 + l) + w_2^2 (H_2 + l) - w^2 (H + l)`` is a second linear equation of the two
hessians. So ``base_weights`` and ``loss_changes`` tell them where ``sum_hessian`` is masked, as
NVFlare masks it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from experiments.extras.trees.clients import Victim
from experiments.extras.trees.forest import Array, Cells, Tree
from fedsim.api import ConfigError

ETA, PENALTY = 0.3, 1.0
"""XGBoost's defaults, where the message does not tell them."""
_ETAS = np.geomspace(1e-3, 1, 241)
_LOOKED_AT = 8
"""Trees that tell the rates. Half and double of it tell the same."""
_AGREES = 1e-2
"""Largest mean disagreement, of hessians each known twice, at which rates count as read. Right ones
leave 1e-6, noise of a hundredth on leaves 1; half and double of it decide alike."""
_LEAF, _SUM, _ROW = 4e-7, 4e-7, 7.5e-8
"""What float32 leaves open: of ``G + w H`` a share of ``w (H + l)``, of ``H`` a share of it, and of
both by the root of the number of rows (of the first twice). With half of each 79 % of the trees of
a hundred rows are followed, 46 % of thirty; with twice all are, to the same and only rows."""
_DRAWS = 8
"""Roundings tried for hessians that are read off gains, whose largest effect is doubled."""
_UNTOLD = 10
"""Hessian of a leaf for this bound where none is told."""


@dataclass(frozen=True, eq=False)
class Sums:
    """Sums of one tree's nodes.

    Attributes:
        gradient: over the rows of a node; NaN where the hessian is not told.
        hessian: NaN where it is not told.
    """

    gradient: Array
    hessian: Array


@dataclass(frozen=True, eq=False)
class Leaves:
    """Leaves of one tree, as boxes of bins and sums over their rows; each ``(leaf, ...)``.

    Attributes:
        low: first bin of each feature.
        high: last bin.
        value: that a leaf adds to the prediction.
        weight: ``w = -G / (H + l)``.
        weighted: ``G + w H = -l w``; known wherever leaves are.
        weighted_slack: what float32 leaves open of it; infinite where labels are not known.
        hessian: ``H``; infinite where it is not told.
        hessian_slack: as above; infinite where it is not told.
    """

    low: Array
    high: Array
    value: Array
    weight: Array
    weighted: Array
    weighted_slack: Array
    hessian: Array
    hessian_slack: Array


def leaves_of(
    cells: Cells, victim: Victim, at: int, rates: tuple[float, float], rows: int
) -> Leaves:
    """The leaves of a victim's tree, given learning rate, penalty and number of rows."""
    tree, (eta, penalty) = victim.trees[at], rates
    leaf = np.flatnonzero(tree.is_leaf)
    boxes = cells.boxes(at)
    value = tree.value[leaf].astype(np.float64)
    weight, row = value / eta, _ROW * float(np.sqrt(rows))
    hessian, slack = (sums[leaf] for sums in _hessians(tree, rates, row))
    size = np.abs(weight) * (penalty + np.where(np.isfinite(hessian), hessian, _UNTOLD))
    loose = _LEAF * size + 2 * row if victim.head.is_logistic else np.full(len(leaf), np.inf)
    low, high = boxes[:, 0], boxes[:, 1]
    return Leaves(low, high, value, weight, -penalty * weight, loose, hessian, slack)


def _hessians(tree: Tree, rates: tuple[float, float], row: float) -> tuple[Array, Array]:
    """Hessian sums of all nodes and what rounding leaves open of them; infinite if not told."""
    hessian = sums_of(tree, *rates).hessian
    slack = _SUM * hessian + row
    if tree.hessian is None and tree.weight is not None and tree.gain is not None:
        rng, weight = np.random.default_rng(0), _weights(tree, rates[0])
        terms = np.nan_to_num(weight**2 * (hessian + rates[1]))  # whose difference is the gain
        terms += np.where(tree.is_leaf, 0, terms[tree.left] + terms[tree.right])
        for _ in range(_DRAWS):
            signs = 2**-20 * rng.choice([-1, 1], (3, len(hessian)))
            value, weight = tree.value * (1 + signs[0]), tree.weight * (1 + signs[1])
            moved = replace(tree, value=value, weight=weight, gain=tree.gain + signs[2] * terms)
            change = sums_of(moved, *rates).hessian - hessian
            slack = np.maximum(slack, np.abs(change) / 2**3)
    known = np.isfinite(hessian + slack)
    return np.where(known, hessian, np.inf), np.where(known, slack, np.inf)


def sums_of(tree: Tree, eta: float, penalty: float) -> Sums:
    """The sums behind a tree, by node."""
    weight = _weights(tree, eta)
    hessian = tree.hessian
    if hessian is None:
        offset, slope = _hessian_line(tree, weight)
        hessian = offset + penalty * slope
    hessian = hessian.astype(np.float64)
    return Sums(-weight * (penalty + hessian), hessian)


def rates(trees: Sequence[Tree]) -> tuple[float, float]:
    """Learning rate and L2 penalty: those by which hessians are the same from above and below."""
    usable = sorted(trees, key=lambda tree: -len(tree.left))[:_LOOKED_AT]
    fits = [_fit(usable, eta) for eta in _ETAS]
    best = int(np.argmin([error for error, _ in fits]))
    low, high = _ETAS[max(best - 1, 0)], _ETAS[min(best + 1, len(_ETAS) - 1)]
    for _ in range(40):
        middle = np.linspace(low, high, 5)
        errors = [_fit(usable, eta)[0] for eta in middle]
        at = min(max(int(np.argmin(errors)), 1), 3)
        low, high = middle[at - 1], middle[at + 1]
    eta = float(f"{(low + high) / 2:.4g}")
    error, penalty = _fit(usable, eta)
    return (eta, round(penalty, 3)) if error < _AGREES else (ETA, PENALTY)


def _fit(trees: Sequence[Tree], eta: float) -> tuple[float, float]:
    """Mean relative disagreement at a learning rate, and the penalty at which it is least."""
    pairs = [pair for tree in trees if len(pair := _disagreements(tree, eta))]
    equations = np.concatenate([np.empty((0, 3)), *pairs])
    if len(equations) < 3:  # two would fit two unknowns
        return np.inf, PENALTY
    offset, slope, scale = equations.T
    offset, slope = offset / scale, slope / scale
    penalty = max(0.0, -float(offset @ slope) / max(float(slope @ slope), 1e-30))
    return float(np.median(np.abs(offset + penalty * slope))), penalty


def _disagreements(tree: Tree, eta: float) -> Array:
    """Each inner node's hessian by its parent's equations less that by its own, linear in l."""
    offset, slope = _hessian_line(tree, _weights(tree, eta))
    if tree.hessian is not None:
        nodes = np.flatnonzero(np.isfinite(offset))
        above = tree.hessian[nodes].astype(np.float64)
        known = np.stack([offset[nodes] - above, slope[nodes], above], 1)
        return np.asarray(known[np.isfinite(known).all(1) & (above > 0)])
    nodes = np.flatnonzero(~tree.is_leaf & np.isfinite(offset))
    kids = tree.left[nodes], tree.right[nodes]
    children = offset[kids[0]] + offset[kids[1]], slope[kids[0]] + slope[kids[1]]
    scale = np.abs(children[0]) + np.abs(offset[nodes]) + 1e-9
    rows: Array = np.stack([offset[nodes] - children[0], slope[nodes] - children[1], scale], 1)
    usable: Array = rows[np.isfinite(rows).all(1)]
    return usable


def _weights(tree: Tree, eta: float) -> Array:
    inner = tree.value * 0 if tree.weight is None else tree.weight
    return np.where(tree.is_leaf, tree.value.astype(np.float64) / eta, inner)


def _hessian_line(tree: Tree, weight: Array) -> tuple[Array, Array]:
    """Hessians as ``offset + l slope`` by the equations of the parent, the root's as their sum."""
    offset, slope = np.full(len(weight), np.nan), np.full(len(weight), np.nan)
    if tree.gain is None or tree.weight is None:
        return offset, slope
    nodes = np.flatnonzero(~tree.is_leaf)
    left, right = tree.left[nodes], tree.right[nodes]
    gain, w = tree.gain[nodes].astype(np.float64), weight[nodes]
    for child, other in ((left, right), (right, left)):
        a, b = weight[child], weight[other]
        with np.errstate(all="ignore"):
            offset[child] = gain / ((w - a) * (b - a))
            slope[child] = w * b / ((w - a) * (b - a)) - 1
    if len(nodes):
        offset[0], slope[0] = offset[left[0]] + offset[right[0]], slope[left[0]] + slope[right[0]]
    return offset, slope


_ROUNDED = 2e-3
"""How far a count may lie from a whole number. Sums in float32 leave 1e-4 of a row of a thousand;
half and double of it count the same leaves of the tests."""
_MOST = 100_000
_COUNTED = 2**24
"""Rows from which on float32 misses whole numbers. Half and double refuse the same of the tests."""


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
    if not rows.sum() < _COUNTED:
        raise ConfigError(f"trees: sums of {rows.sum():.3g} rows, which float32 cannot count.")
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
