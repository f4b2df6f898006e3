"""Trees as arrays, the cells that all thresholds cut the feature space into, and their leaves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Array: TypeAlias = npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class Tree:
    """Nodes of one tree, the root first; a leaf has the child -1.

    Attributes:
        left: taken by rows whose feature is below the threshold.
        right: taken by the others.
        feature: number of the feature that a node splits by.
        value: threshold of a node, or what a leaf adds to the prediction.
        missing_left: whether rows without the feature go left.
        hessian: sum over the rows of a node; None if it was not sent.
        weight: of a node, of leaves times the learning rate; None if it was not sent.
        gain: of the split of a node; None if it was not sent.
    """

    left: Array
    right: Array
    feature: Array
    value: Array
    missing_left: Array
    hessian: Array | None
    weight: Array | None
    gain: Array | None

    @property
    def is_leaf(self) -> Array:
        """Of each node."""
        return self.left < 0


@dataclass(frozen=True, eq=False)
class Forest:
    """A message: trees in the order of boosting.

    Attributes:
        base_score: prediction before the first tree, a probability where the objective is logistic;
            None if it is hidden.
    """

    objective: str
    base_score: float | None
    names: tuple[str, ...]
    trees: tuple[Tree, ...]

    @property
    def is_logistic(self) -> bool:
        """Whether labels are 0 and 1."""
        return self.objective == "binary:logistic"


class Cells:
    """The cells that the thresholds of trees cut the space into, each a bin of every feature.

    Bin 0 of a feature is below its first threshold; a row goes left where its bin is at most that
    of the threshold.

    Args:
        trees: of all clients.
        features: number of features.
    """

    def __init__(self, trees: Sequence[Tree], features: int) -> None:
        self.thresholds = [_thresholds(trees, feature) for feature in range(features)]
        sizes = [len(tree.left) for tree in trees]
        offsets = np.cumsum([0, *sizes])
        self.roots, self.nodes = offsets[:-1], int(offsets[-1])
        numbers = np.arange(self.nodes)
        start = np.repeat(self.roots, sizes)
        self.is_leaf = _joined([tree.is_leaf for tree in trees])
        left = np.where(self.is_leaf, numbers, _joined([tree.left for tree in trees]) + start)
        right = np.where(self.is_leaf, numbers, _joined([tree.right for tree in trees]) + start)
        self.feature = _joined([tree.feature for tree in trees])
        value = _joined([tree.value for tree in trees])
        self.children = np.stack([left, right], 1)
        pairs = zip(self.feature, value, strict=True)
        self.cut = np.array([np.searchsorted(self.thresholds[f], cut) for f, cut in pairs])

    def bins(self, rows: Array) -> Array:
        """Of each feature, ``(row, feature)``."""
        pairs = zip(self.thresholds, np.asarray(rows, np.float32).T, strict=True)
        return np.stack([np.searchsorted(t, column, side="right") for t, column in pairs], 1)

    def box(self, tree: int, leaf: int) -> Array:
        """First and last bin of each feature in a leaf, ``(2, feature)``."""
        box = np.array([[0] * len(self.thresholds), [len(t) for t in self.thresholds]])
        node = int(self.roots[tree])
        parents = self._parents
        while leaf != node:
            parent = parents[leaf]
            feature, cut = self.feature[parent], self.cut[parent]
            if self.children[parent, 0] == leaf:
                box[1, feature] = min(box[1, feature], cut)
            else:
                box[0, feature] = max(box[0, feature], cut + 1)
            leaf = parent
        return box

    @cached_property
    def _parents(self) -> Array:
        parents = np.arange(self.nodes)
        inner = ~self.is_leaf
        for side in (0, 1):
            parents[self.children[inner, side]] = np.flatnonzero(inner)
        return parents


def _joined(parts: Sequence[Array]) -> Array:
    return np.concatenate(parts)


def _thresholds(trees: Sequence[Tree], feature: int) -> Array:
    values = [tree.value[(tree.feature == feature) & ~tree.is_leaf] for tree in trees]
    return np.unique(np.concatenate([*values, np.empty(0, np.float32)]))
