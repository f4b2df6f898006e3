"""Bagging with a real XGBoost, as Flower's FedXgbBagging and its quickstart app run it."""

import json
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any, TypeAlias

import numpy as np

from experiments.extras.trees.clients import Reply
from experiments.extras.trees.forest import Array, read_forest
from experiments.extras.trees.table import Rows
from fedsim.api import ConfigError

Message: TypeAlias = dict[str, Any]
Alter: TypeAlias = Callable[[Message], None]


def bagging(
    tables: Sequence[Rows],
    rounds: int,
    trees: int,
    parameters: Mapping[str, Any],
    alter: Alter | None = None,
) -> list[Reply]:
    """What the server is sent: each round every client adds trees to the model of all clients.

    Args:
        tables: private rows of each client.
        rounds: of the federation.
        trees: that a client grows in each.
        parameters: of XGBoost.
        alter: what a client does to a message before it sends it.

    Raises:
        ConfigError: XGBoost is not installed.
    """
    from flwr.serverapp.strategy.strategy_utils import aggregate_bagging

    merged, replies = b"", []
    for round_ in range(1, rounds + 1):
        sent = merged
        before = read_forest(sent, "model") if sent else None
        for client, rows in enumerate(tables):
            data = _altered(grown(rows, sent, trees, parameters), alter)
            merged = aggregate_bagging(merged, data)
            replies.append(Reply(client, round_, before, read_forest(data, "reply")))
    return replies


def grown(rows: Rows, sent: bytes, trees: int, parameters: Mapping[str, Any]) -> bytes:
    """The trees that a client adds to a model, as JSON."""
    try:
        xgboost = import_module("xgboost")
    except ImportError:
        raise ConfigError("trees: XGBoost is not installed. Run pip install xgboost.") from None
    options = {"nthread": 1, "tree_method": "hist", **parameters}
    matrix = xgboost.DMatrix(rows.values, label=rows.labels)
    if not sent:
        return bytes(xgboost.train(options, matrix, trees).save_raw("json"))
    model = xgboost.Booster(options, model_file=bytearray(sent))
    start = model.num_boosted_rounds()
    for _ in range(trees):
        model.update(matrix, model.num_boosted_rounds())
    return bytes(model[start : start + trees].save_raw("json"))


def _altered(data: bytes, alter: Alter | None) -> bytes:
    if alter is None:
        return data
    message = json.loads(data)
    alter(message)
    return json.dumps(message).encode()


def masked(message: Message) -> None:
    """What NVFlare sends since its pull request 3878: every sum of hessians is 1."""
    for tree in _trees(message):
        tree["sum_hessian"] = [1.0] * len(tree["sum_hessian"])


def bare(message: Message) -> None:
    """Thresholds and leaves alone, which is what a prediction needs."""
    for tree in _trees(message):
        for name in ("sum_hessian", "loss_changes", "base_weights"):
            tree[name] = [0.0] * len(tree[name])


def without_base_score(message: Message) -> None:
    """The base score is kept by the client."""
    message["learner"]["learner_model_param"].pop("base_score", None)


def noisy_leaves(message: Message, share: float, rng: np.random.Generator) -> None:
    """Leaves alone, with Gaussian noise of a share of their root mean square."""
    bare(message)
    for tree in _trees(message):
        leaf = np.asarray(tree["left_children"]) < 0
        values = np.asarray(tree["split_conditions"], np.float32)
        scale = share * float(np.sqrt((values[leaf] ** 2).mean()))
        values[leaf] += rng.normal(0, scale, leaf.sum()).astype(np.float32)
        tree["split_conditions"] = values.tolist()


def _trees(message: Message) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = message["learner"]["gradient_booster"]["model"]["trees"]
    return found


def stroke_like(count: int, seed: int) -> Rows:
    """Rows drawn from the published summary of the stroke data set, columns of 5,110 patients.

    The shares and moments are those printed with the Kaggle data set "Stroke Prediction Dataset"
    (fedesoriano): they are drawn column by column but for marriage and stroke, which rise with age.
    Half of the rows have a stroke, as in a balanced training set. No row is a patient's.
    """
    rng = np.random.default_rng(seed)
    age = np.clip(np.round(rng.normal(43.2, 22.6, count)), 1, 82)
    glucose = np.round(np.clip(rng.lognormal(4.57, 0.36, count), 55, 272), 2)
    weight = np.round(np.clip(rng.normal(28.9, 7.7, count), 10.3, 97.6), 1)
    columns: list[Array] = [
        *(age, glucose, weight),
        (rng.random(count) < 0.414).astype(float),
        (rng.random(count) < 0.0975).astype(float),
        (rng.random(count) < 0.054).astype(float),
        (rng.random(count) < np.clip((age - 18) / 25, 0, 0.9)).astype(float),
        rng.choice(5, count, p=[0.572, 0.16, 0.134, 0.13, 0.004]).astype(float),
        (rng.random(count) < 0.508).astype(float),
        rng.choice(4, count, p=[0.37, 0.302, 0.173, 0.155]).astype(float),
    ]
    odds = 0.07 * (age - 45) + 0.005 * (glucose - 100)
    return Rows(np.stack(columns, 1), (rng.random(count) < 1 / (1 + np.exp(-odds))).astype(float))


def packaged(name: str) -> Rows:
    """``breast_cancer`` or ``diabetes`` of scikit-learn, in an order drawn from seed 0.

    Raises:
        ConfigError: scikit-learn is not installed.
    """
    try:
        module = import_module("sklearn.datasets")
    except ImportError:
        raise ConfigError("trees: scikit-learn is missing. Run pip install scikit-learn.") from None
    values, labels = getattr(module, f"load_{name}")(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    return Rows(np.asarray(values)[order], np.asarray(labels, float)[order])


def split(rows: Rows, clients: int, each: int) -> list[Rows]:
    """Clients of ``each`` rows, in the order of the table."""
    starts = range(0, clients * each, each)
    return [Rows(_part(rows.values, at, each), _part(rows.labels, at, each)) for at in starts]


def _part(values: Array, start: int, count: int) -> Array:
    return values[start : start + count]
