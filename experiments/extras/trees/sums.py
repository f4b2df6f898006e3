"""Gradient and hessian sums of every node, from whatever the message left of them.

With ``w = -G / (H + l)`` at a node and its children, ``G = G_1 + G_2`` and ``H = H_1 + H_2``, the
gain ``w_1^2 (H_1 + l) + w_2^2 (H_2 + l) - w^2 (H + l)`` is a second linear equation of the two
hessians. So ``base_weights`` and ``loss_changes`` tell them where ``sum_hessian`` is masked, as
NVFlare masks it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from experiments.extras.trees.clients import Victim
from experiments.extras.trees.forest import Array, Cells, Tree

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
    boxes = np.array([cells.box(at, int(cells.roots[at] + node)) for node in leaf])
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
