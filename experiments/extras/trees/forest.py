"""Trees as arrays, read from a message of XGBoost, and the cells that their thresholds cut."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from experiments.extras.trees import ubjson
from fedsim.api import ConfigError

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
        numbers, start = np.arange(self.nodes)[:, None], np.repeat(self.roots, sizes)[:, None]
        self.is_leaf = np.concatenate([tree.is_leaf for tree in trees])
        children = np.concatenate([np.stack([tree.left, tree.right], 1) for tree in trees])
        self.children = np.where(self.is_leaf[:, None], numbers, children + start)
        self.feature = np.concatenate([tree.feature for tree in trees])
        value = np.concatenate([tree.value for tree in trees])
        pairs = zip(self.feature, value, strict=True)
        self.cut = np.array([np.searchsorted(self.thresholds[f], cut) for f, cut in pairs])

    def bins(self, rows: Array) -> Array:
        """Of each feature, ``(row, feature)``."""
        pairs = zip(self.thresholds, np.asarray(rows, np.float32).T, strict=True)
        return np.stack([np.searchsorted(t, column, side="right") for t, column in pairs], 1)

    def boxes(self, tree: int) -> Array:
        """First and last bin of each feature in each leaf of a tree, ``(leaf, 2, feature)``."""
        last = [len(thresholds) for thresholds in self.thresholds]
        nodes, boxes = self.roots[tree, None], np.array([[np.zeros_like(last), last]])
        leaves: dict[int, Array] = {}
        while len(nodes):
            ends = self.is_leaf[nodes]
            leaves.update(zip(nodes[ends].tolist(), boxes[ends], strict=True))
            nodes, boxes = nodes[~ends], boxes[~ends]
            left, right, at = boxes, boxes.copy(), np.arange(len(nodes))
            feature, cut = self.feature[nodes], self.cut[nodes]
            left[at, 1, feature] = np.minimum(left[at, 1, feature], cut)
            right[at, 0, feature] = np.maximum(right[at, 0, feature], cut + 1)
            nodes, boxes = self.children[nodes].T.ravel(), np.concatenate([left, right])
        return np.array([leaves[node] for node in sorted(leaves)])


def _thresholds(trees: Sequence[Tree], feature: int) -> Array:
    values = [tree.value[(tree.feature == feature) & ~tree.is_leaf] for tree in trees]
    return np.unique(np.concatenate([*values, np.empty(0, np.float32)]))


WIDEST = 2**16
"""Features of a message. A stump of as many takes 6 CPU seconds; half and double of it read the
same models of the tests."""
LARGEST = 2**20
"""Nodes of a message. A message of this size takes some seconds and a gigabyte to read; half and
double of it read the same models of the tests."""
_OTHERS = {
    b"CBM1": "a CatBoost model",
    b"tree\nversion": "a LightGBM model",
    b"\x80": "a pickle, as of scikit-learn's gradient boosting, which may run code when it is read",
}
_SENT = "Send a model of XGBoost as JSON or UBJSON."
_OBJECTIVES = ("binary:logistic", "reg:squarederror")


def read_forest(data: bytes, place: str) -> Forest:
    """The trees of a message.

    Args:
        data: what ``Booster.save_raw("json")`` or ``save_raw("ubj")`` gives.
        place: names the message in errors.

    Raises:
        ConfigError: it is another kind of message, or a tree that cannot be.
    """
    for start, name in _OTHERS.items():
        if data.startswith(start):
            raise ConfigError(f"{place}: {name}. {_SENT}")
    try:
        said = json.loads(data) if data[:2].strip() in (b'{"', b"{") else ubjson.loads(data)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{place}: is no JSON and no UBJSON ({error}). {_SENT}") from None
    if isinstance(said, dict) and "oblivious_trees" in said:
        raise ConfigError(f"{place}: a CatBoost model. {_SENT}")
    try:
        return _forest(said, place)
    except (KeyError, TypeError, IndexError, AttributeError, ValueError) as error:
        fault = f"{type(error).__name__}: {error}"
        raise ConfigError(f"{place}: is no model of XGBoost ({fault}). {_SENT}") from None


def _forest(said: Mapping[str, Any], place: str) -> Forest:
    learner = said["learner"]
    booster, parameters = learner["gradient_booster"], learner["learner_model_param"]
    objective = learner["objective"]["name"]
    if booster["name"] != "gbtree":
        raise ConfigError(f"{place}: the booster is {booster['name']!r}. Send one of gbtree.")
    if objective not in _OBJECTIVES or int(parameters.get("num_class", 0)) > 1:
        known = ", ".join(_OBJECTIVES)
        raise ConfigError(f"{place}: the objective is {objective!r}. Send a model of {known}.")
    trees = booster["model"]["trees"]
    if (nodes := sum(len(tree["left_children"]) for tree in trees)) > LARGEST:
        raise ConfigError(f"{place}: has {nodes:,} nodes, and {LARGEST:,} are read. Send fewer.")
    features = int(parameters["num_feature"])
    names = tuple(learner.get("feature_names") or (f"f{k}" for k in range(features)))
    if not 0 < features <= WIDEST or len(names) != features:
        raise ConfigError(
            f"{place}: has {features:,} features and {len(names):,} names. "
            f"Send as many of both, {WIDEST:,} at most."
        )
    base = _base_score(parameters.get("base_score"))
    if base is not None and objective == _OBJECTIVES[0] and not 0 < base < 1:
        raise ConfigError(f"{place}: the base score {base:g} is no probability. Send another.")
    return Forest(
        objective=objective,
        base_score=base,
        names=names,
        trees=tuple(_tree(tree, features, f"{place}: tree {k}") for k, tree in enumerate(trees)),
    )


def _base_score(said: str | None) -> float | None:
    """In the unit of the prediction; newer versions write a list of one."""
    value = float(said.strip("[]")) if said else float("nan")
    return value if np.isfinite(value) else None


def _tree(said: Mapping[str, Any], features: int, place: str) -> Tree:
    if np.any(np.asarray(said.get("split_type", 0))):
        raise ConfigError(f"{place}: splits by sets of categories. Send one of numeric splits.")
    if int(said["tree_param"].get("size_leaf_vector", 1)) > 1:
        raise ConfigError(f"{place}: has leaves of several values. Send one of single values.")
    left = np.asarray(said["left_children"], np.int64)
    kept = _reached(left, np.asarray(said["right_children"], np.int64), place)
    number = np.full(len(left) + 1, -1)
    number[kept] = np.arange(len(kept))
    columns = {
        key: np.asarray(said[key], np.float32)[kept]
        for key in ("split_conditions", "sum_hessian", "base_weights", "loss_changes")
        if key in said and len(said[key]) == len(left)
    }
    tree = Tree(
        left=number[left[kept]],
        right=number[np.asarray(said["right_children"], np.int64)[kept]],
        feature=np.where(left[kept] < 0, 0, np.asarray(said["split_indices"], np.int64)[kept]),
        value=columns["split_conditions"],
        missing_left=np.asarray(said["default_left"], bool)[kept],
        hessian=_given(columns.get("sum_hessian")),
        weight=_given(columns.get("base_weights")),
        gain=_given(columns.get("loss_changes")),
    )
    _check(tree, features, place)
    return tree


def _given(values: np.ndarray[Any, Any] | None) -> np.ndarray[Any, Any] | None:
    """None where the field was taken out, or all of it is one number: no sums are equal."""
    return values if values is not None and (len(values) == 1 or np.ptp(values) != 0) else None


def _reached(left: Any, right: Any, place: str) -> Any:  # noqa: ANN401
    """Nodes below the root, parents first; pruning leaves others behind."""
    order, level = [], np.zeros(1, np.int64)
    seen = np.zeros(len(left), bool)
    while len(level):
        if seen[level].any() or len(np.unique(level)) < len(level):
            raise ConfigError(f"{place}: a node has two parents, or is its own. Mend the tree.")
        seen[level] = True
        order.append(level)
        inner = level[left[level] >= 0]
        level = np.concatenate([left[inner], right[inner]])
        if len(level) and not 0 < level.min() <= level.max() < len(left):
            raise ConfigError(f"{place}: a child is no node of the tree. Mend the tree.")
    return np.concatenate(order)


def _check(tree: Tree, features: int, place: str) -> None:
    if not np.isfinite(tree.value).all():
        raise ConfigError(f"{place}: a threshold or leaf is not finite. Mend the tree.")
    if not 0 <= tree.feature.min() <= tree.feature.max() < features:
        raise ConfigError(f"{place}: splits by a feature that is not there. Mend the tree.")
    if tree.hessian is not None and not (tree.hessian >= 0).all():  # NaN as well
        raise ConfigError(f"{place}: a sum of hessians is negative or no number. Mend the tree.")
    for name, given in (("base weight", tree.weight), ("gain", tree.gain)):
        if given is not None and not np.isfinite(given).all():
            raise ConfigError(f"{place}: a {name} is not finite. Mend the tree.")
