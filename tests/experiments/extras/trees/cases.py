"""A tree by hand, messages of a real XGBoost, and rows drawn for it."""

import copy
import json
from typing import Any

import numpy as np
import pytest

from experiments.extras.trees.table import Rows

LEAF = [-0.3, 0.3]
STUMP: dict[str, Any] = {
    "learner": {
        "feature_names": ["age", "sex"],
        "feature_types": [],
        "gradient_booster": {
            "name": "gbtree",
            "model": {
                "trees": [
                    {
                        "left_children": [1, -1, -1],
                        "right_children": [2, -1, -1],
                        "split_indices": [0, 0, 0],
                        "split_conditions": [40.0, *LEAF],
                        "split_type": [0, 0, 0],
                        "default_left": [0, 0, 0],
                        "sum_hessian": [3.0, 1.0, 2.0],
                        "base_weights": [1.0 / 3, *LEAF],
                        "tree_param": {"size_leaf_vector": "1"},
                    }
                ]
            },
        },
        "learner_model_param": {"base_score": "5E-1", "num_class": "0", "num_feature": "2"},
        "objective": {"name": "binary:logistic"},
    }
}


def stump(**changes: Any) -> bytes:
    """The tree by hand, with fields of its one tree replaced; None takes a field out."""
    message = copy.deepcopy(STUMP)
    tree = message["learner"]["gradient_booster"]["model"]["trees"][0]
    for name, value in changes.items():
        tree[name] = value
    kept = {name: value for name, value in tree.items() if value is not None}
    message["learner"]["gradient_booster"]["model"]["trees"] = [kept]
    return json.dumps(message).encode()


def stump_tree(feature: int, cut: float, hessian: list[float]) -> dict[str, Any]:
    """A tree whose two leaves hold as many rows with each label, so that it adds nothing."""
    tree: dict[str, Any]
    (tree,) = copy.deepcopy(STUMP["learner"]["gradient_booster"]["model"]["trees"])
    return tree | {
        "split_indices": [feature, 0, 0],
        "split_conditions": [cut, 0.0, 0.0],
        "sum_hessian": [sum(hessian), *hessian],
        "base_weights": [0.0, 0.0, 0.0],
    }


def forest(trees: list[dict[str, Any]]) -> bytes:
    """Trees by hand in one message."""
    message = copy.deepcopy(STUMP)
    message["learner"]["gradient_booster"]["model"]["trees"] = trees
    return json.dumps(message).encode()


def drawn(count: int, seed: int = 0) -> Rows:
    """Three whole columns and one real one, and labels that depend on two of them."""
    rng = np.random.default_rng(seed)
    values = np.column_stack(
        [
            rng.integers(20, 80, count),
            rng.integers(0, 2, count),
            rng.integers(0, 4, count),
            np.round(rng.normal(28, 5, count), 1),
        ]
    )
    odds = (values[:, 0] - 50) / 12 + values[:, 1]
    labels = (rng.random(count) < 1 / (1 + np.exp(-odds))).astype(float)
    return Rows(values, labels)


def boosted(rows: Rows, trees: int = 8, form: str = "json", **parameters: Any) -> bytes:
    """A model of the real library, which some machines lack."""
    xgboost = pytest.importorskip("xgboost", reason="xgboost is not installed")
    options = {"objective": "binary:logistic", "max_depth": 3, "nthread": 1, **parameters}
    matrix = xgboost.DMatrix(rows.values, label=rows.labels)
    return bytes(xgboost.train(options, matrix, trees).save_raw(form))
