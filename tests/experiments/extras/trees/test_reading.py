"""Messages of XGBoost are read as the library reads them; hostile ones end in one line."""

import json
import struct
from typing import Any

import numpy as np
import pytest

from experiments.extras.trees import ubjson
from experiments.extras.trees.clients import Reply, Victim, victims
from experiments.extras.trees.forest import LARGEST, Cells, read_forest
from experiments.extras.trees.sums import leaves_of
from experiments.extras.trees.table import Rows
from fedsim.api import ConfigError
from tests.experiments.extras.trees.cases import boosted, drawn, stump


def test_a_tree_by_hand() -> None:
    forest = read_forest(stump(), "a")
    assert forest.names == ("age", "sex")
    assert forest.base_score == 0.5
    cells = Cells(forest.trees, 2)
    bins = cells.bins(np.array([[39.0, 1], [40, 0]]))
    assert bins.tolist() == [[0, 0], [1, 0]]
    assert cells.boxes(0).tolist() == [[[0, 0], [0, 0]], [[1, 0], [1, 0]]]


def leaf_values(victim: Victim, tree: int, rows: Rows) -> Any:
    """What a tree adds to the prediction of each row."""
    cells = victim.cells()
    bins, leaves = cells.bins(rows.values)[:, None], leaves_of(cells, victim, tree, (0.3, 1.0), 1)
    return ((leaves.low <= bins) & (bins <= leaves.high)).all(2) @ leaves.value


@pytest.mark.parametrize("form", ["json", "ubj"])
@pytest.mark.parametrize("method", ["hist", "exact", "approx"])
def test_predictions_are_those_of_the_library(form: str, method: str) -> None:
    xgboost = pytest.importorskip("xgboost", reason="xgboost is not installed")
    rows = drawn(300)
    data = boosted(rows, 6, form, max_depth=5, tree_method=method)
    forest = read_forest(data, "model")
    (victim,) = victims([Reply(0, 1, None, forest)])
    booster = xgboost.Booster(model_file=bytearray(data))
    margin = booster.predict(xgboost.DMatrix(rows.values), output_margin=True)
    added = sum(leaf_values(victim, tree, rows) for tree in range(6))
    assert forest.base_score is not None
    base = np.log(forest.base_score / (1 - forest.base_score))
    assert base + added == pytest.approx(margin, abs=1e-5)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"left_children": [0, -1, -1]}, "a child is no node"),
        ({"left_children": [2, -1, -1]}, "two parents"),
        ({"left_children": [1, 2, -1], "right_children": [2, 2, -1]}, "two parents"),
        ({"left_children": [9, -1, -1]}, "a child is no node"),
        ({"split_conditions": [40.0, float("nan"), 0.3]}, "not finite"),
        ({"base_weights": [float("inf"), 0.0, 0.3]}, "not finite"),
        ({"sum_hessian": [3.0, -1.0, 4.0]}, "negative"),
        ({"sum_hessian": [3.0, float("nan"), 4.0]}, "negative or no number"),
        ({"split_indices": [7, 0, 0]}, "a feature that is not there"),
        ({"split_indices": ["x", 0, 0]}, "is no model of XGBoost"),
        ({"split_type": [1, 0, 0]}, "sets of categories"),
        ({"tree_param": {"size_leaf_vector": "3"}}, "leaves of several values"),
        ({"left_children": None}, "is no model of XGBoost"),
        ({"left_children": []}, "is no model of XGBoost"),
        ({"left_children": [-1] * (LARGEST + 1)}, "nodes, and"),
    ],
)
def test_hostile_trees_end_in_one_line(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said) as error:
        read_forest(stump(**changes), "model.json")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "no JSON and no UBJSON"),
        (b"{", "no JSON and no UBJSON"),
        (b'{"learner": 1}', "is no model of XGBoost"),
        (b"[" * 100_000, "no JSON and no UBJSON"),
        (b'{"a":' * 100_000, "no JSON and no UBJSON"),
        (b"CBM1\0", "a CatBoost model"),
        (b'{"oblivious_trees": []}', "a CatBoost model"),
        (b"tree\nversion=v4", "a LightGBM model"),
        (b"\x80\x04", "a pickle, as of scikit-learn"),
        (b"[$l#L" + struct.pack(">q", 2**60), "has a container of"),
        (b"[$l#L" + struct.pack(">q", -1), "has a container of"),
        (b"[$Z#L" + struct.pack(">q", 2**60), "has a container of"),
        (b"{L" + struct.pack(">q", 3) + b"ab", "ends early"),
        (b"Zx", "bytes follow its end"),
    ],
)
def test_other_messages_are_named(data: bytes, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as error:
        read_forest(data, "message")
    assert "\n" not in str(error.value)


@pytest.mark.slow
def test_a_million_nodes_are_read() -> None:
    leaves = 2**19
    inner = np.arange(leaves - 1)
    tree = {
        "left_children": [*(2 * inner + 1).tolist(), *[-1] * leaves],
        "right_children": [*(2 * inner + 2).tolist(), *[-1] * leaves],
    }
    names = ("split_indices", "default_left", "split_conditions")
    full = dict.fromkeys(names, [0] * (2 * leaves - 1))
    gone = dict.fromkeys(("split_type", "sum_hessian", "base_weights"))
    forest = read_forest(stump(**tree, **full, **gone), "large")
    assert len(forest.trees[0].left) == 2 * leaves - 1


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"gradient_booster": {"name": "dart"}}, "the booster is 'dart'"),
        ({"objective": {"name": "multi:softprob"}}, "the objective is 'multi:softprob'"),
        ({"learner_model_param": {"base_score": "1E0", "num_feature": 2}}, "is no probability"),
        ({"learner_model_param": {"num_feature": 10**6}, "feature_names": []}, "65,536 at most"),
    ],
)
def test_models_of_another_kind_are_named(changes: dict[str, Any], said: str) -> None:
    message = json.loads(stump())
    message["learner"] |= changes
    with pytest.raises(ConfigError, match=said):
        read_forest(json.dumps(message).encode(), "model")


def test_containers_of_ubjson() -> None:
    plain = b"{i\x01a[i\x01U\xffT]i\x01b[$d#i\x01\x3f\x80\x00\x00}"
    read = ubjson.loads(plain)
    assert read["a"] == [1, 255, True]
    assert read["b"].tolist() == [1.0]
    assert ubjson.loads(b"{#i\x01i\x01aSi\x02hi") == {"a": "hi"}
