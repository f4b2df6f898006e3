"""Counts and labels of the first tree are exact, and every row is followed through every tree."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.optimize import linear_sum_assignment

from benchmarks.bench_trees import by_leaf
from benchmarks.trees_federation import bagging, noisy_leaves
from experiments.extras.trees.clients import Reply, Victim, victims
from experiments.extras.trees.forest import read_forest
from experiments.extras.trees.search import Guess, search
from experiments.extras.trees.sums import read_facts
from experiments.extras.trees.table import Rows, Schema, filled, intervals, score, shuffled
from fedsim.api import ConfigError
from tests.experiments.conftest import Said
from tests.experiments.extras.trees.cases import boosted, drawn, forest, stump, stump_tree


def victim_of(data: bytes) -> Victim:
    (victim,) = victims([Reply(0, 1, None, read_forest(data, "model"))])
    return victim


@pytest.mark.parametrize(("eta", "penalty"), [(0.3, 1.0), (0.1, 0.0), (0.05, 2.5)])
def test_counts_and_rates_of_the_first_tree_are_exact(eta: float, penalty: float) -> None:
    rows = drawn(400)
    victim = victim_of(boosted(rows, eta=eta, reg_lambda=penalty, max_depth=4))
    facts = read_facts(victim)
    assert (facts.eta, facts.penalty) == pytest.approx((eta, penalty), rel=1e-3)
    assert (facts.leaf_rows.tolist(), facts.leaf_positive.tolist()) == by_leaf(victim, facts, rows)
    assert facts.proven
    assert facts.rows == 400


def test_counts_by_hand() -> None:
    facts = read_facts(victim_of(stump()))
    assert (facts.leaf_rows.tolist(), facts.leaf_positive.tolist()) == ([4, 8], [0, 7])
    assert not read_facts(victim_of(stump(sum_hessian=[3.0, 1.1, 1.9]))).proven
    with pytest.raises(ConfigError, match="float32 cannot count"):
        read_facts(victim_of(stump(sum_hessian=[3e37, 1e37, 2e37])))
    with pytest.raises(ConfigError, match="client 0 sent no tree"):
        victim_of(forest([]))


def test_a_hidden_base_score_is_found() -> None:
    rows = drawn(300, seed=2)
    victim = victim_of(boosted(rows, max_depth=5))
    message = json.loads(boosted(rows, max_depth=5))
    del message["learner"]["learner_model_param"]["base_score"]
    facts = read_facts(victim_of(json.dumps(message).encode()), claimed=300)
    assert facts.base_score == pytest.approx(victim.head.base_score, rel=1e-4)
    assert facts.leaf_positive.tolist() == by_leaf(victim, facts, rows)[1]


def altered(data: bytes, **fields: float | None) -> bytes:
    """With fields of every tree set to one number, or taken out."""
    message = json.loads(data)
    for tree in message["learner"]["gradient_booster"]["model"]["trees"]:
        for name, value in fields.items():
            old = tree.pop(name)
            tree |= {} if value is None else {name: [value] * len(old)}
    return json.dumps(message).encode()


@pytest.mark.parametrize("mask", [1.0, None])
@pytest.mark.parametrize("eta", [0.3, 0.02])
def test_masked_hessians_are_read_off_gains(mask: float | None, eta: float) -> None:
    """NVFlare sets every ``sum_hessian`` to 1."""
    rows = drawn(400)
    data = boosted(rows, eta=eta, max_depth=4)
    facts = read_facts(victim_of(altered(data, sum_hessian=mask)))
    assert facts.eta == pytest.approx(eta, rel=1e-3)
    private = by_leaf(victim_of(data), facts, rows)
    assert (facts.leaf_rows.tolist(), facts.leaf_positive.tolist()) == private
    assert facts.proven


def test_thresholds_and_leaves_alone_count_no_row() -> None:
    bare = altered(boosted(drawn(100)), sum_hessian=None, loss_changes=0.0, base_weights=0.0)
    assert read_facts(victim_of(bare)).rows is None
    assert not read_facts(victim_of(bare), claimed=100).proven


def test_a_regression_counts_rows() -> None:
    rows = drawn(200)
    wanted = Rows(rows.values[:, :3], rows.values[:, 3])
    victim = victim_of(boosted(wanted, objective="reg:squarederror"))
    facts = read_facts(victim)
    assert facts.leaf_rows.tolist() == by_leaf(victim, facts, wanted)[0]
    assert not len(facts.leaf_positive)


SMALL: dict[str, Any] = {"max_depth": 4, "min_child_weight": 0}


def rows_in_boxes(victim: Victim, rows: Rows, guess: Guess) -> bool:
    """Whether each private row lies in the box of a guess of its own, with its label."""
    bins = victim.cells().bins(rows.values)[:, None]
    inside = ((guess.low <= bins) & (bins <= guess.high)).all(2)
    wrong = ~(inside & (rows.labels[:, None] == guess.labels))
    return not wrong[linear_sum_assignment(wrong)].any()


def test_every_row_is_followed_through_every_tree() -> None:
    """Of eight trees that XGBoost 3.2 grew on these rows."""
    rows, model = drawn(60), Path(__file__).parent / "sixty_rows.ubj"
    victim = victim_of(model.read_bytes())
    guess = search(victim, read_facts(victim), 20.0)
    assert (guess.trees, guess.proven) == (8, True)
    assert rows_in_boxes(victim, rows, guess)


def test_a_tree_may_have_more_leaves_than_python_nests() -> None:
    """A chain of 1,200 leaves, each of one row."""
    inner, leaves = 1199, 1200
    tree = {
        "left_children": [*range(inner, inner + leaves - 1), *[-1] * leaves],
        "right_children": [*range(1, inner), inner + leaves - 1, *[-1] * leaves],
        "split_conditions": [*range(inner), *[-0.12, 0.12] * (leaves // 2)],
        "sum_hessian": [*(0.25 * np.arange(leaves, 1, -1)).tolist(), *[0.25] * leaves],
    }
    zeros = dict.fromkeys(("split_indices", "default_left"), [0] * (inner + leaves))
    victim = victim_of(stump(**tree, **zeros, base_weights=None, split_type=None))
    guess = search(victim, read_facts(victim), 20.0)
    assert (guess.trees, guess.proven) == (1, True)
    assert guess.labels[np.argsort(guess.low[:, 0])].tolist() == [0.0, 1.0] * (leaves // 2)


@pytest.mark.parametrize(
    "changes",
    [
        {"sum_hessian": 1.0},
        {"sum_hessian": None, "loss_changes": 0.0, "base_weights": 0.0},
    ],
)
def test_masks_hide_no_row(changes: dict[str, float | None]) -> None:
    """NVFlare's of hessians, and thresholds and leaves alone."""
    rows = drawn(60)
    victim = victim_of(altered(boosted(rows, 12, **SMALL), **changes))
    guess = search(victim, read_facts(victim, claimed=60), 20.0)
    assert (guess.trees, guess.proven) == (12, True)
    assert rows_in_boxes(victim, rows, guess)


def test_a_round_of_bagging_is_followed() -> None:
    pytest.importorskip("xgboost", reason="xgboost is not installed")
    tables = [drawn(30), drawn(30, seed=5)]
    replies = bagging(tables, 2, 6, {"objective": "binary:logistic", **SMALL})
    victim = victims(replies)[0]
    guess = search(victim, read_facts(victim), 20.0)
    assert guess.trees >= 6
    assert rows_in_boxes(victim, tables[0], guess)


def test_noise_on_leaves_fits_no_rows() -> None:
    data = json.loads(boosted(drawn(60), 4, **SMALL))
    noisy_leaves(data, 0.1, np.random.default_rng(0))
    victim = victim_of(json.dumps(data).encode())
    guess = search(victim, read_facts(victim, claimed=60), 5.0)
    assert (guess.trees, guess.proven) == (0, False)


def test_rows_that_sums_do_not_tell_apart_are_not_proven() -> None:
    """Two leaves of equal rows: the second tree may part either."""
    trees = [stump_tree(0, 40.0, [4.0, 4.0]), stump_tree(1, 0.5, [4.0, 4.0])]
    victim = victim_of(forest(trees))
    guess = search(victim, read_facts(victim), 5.0)
    assert (guess.trees, guess.proven) == (2, False)


def test_the_other_clients_trees_tell_less() -> None:
    rows, other, server = drawn(60), drawn(60, seed=5), drawn(60, seed=6)
    schema, reached = Schema.of(("a", "b", "c", "d"), server.values), []
    for source in (rows, other):
        victim = victim_of(boosted(source, 20, **SMALL))
        guess = search(victim, read_facts(victim), 20.0)
        ends = intervals(victim.cells(), schema, guess)
        reached.append(score(rows, filled(schema, guess, *ends), schema))
    by_column = [score(rows, shuffled(rows, seed), schema) for seed in range(5)]
    assert reached[0].values > reached[1].values + 0.1
    assert reached[0].rows > 0.2 > max(one.rows for one in by_column)


def test_a_value_is_the_servers_median_in_its_interval() -> None:
    server = np.array([[1.0, 0], [2.0, 1], [3.0, 1], [9.5, 0]])
    schema = Schema.of(("size", "code"), server)
    guess = Guess(np.zeros((1, 2), int), np.zeros((1, 2), int), np.ones(1), 1, True, 0.0)
    low, high = np.array([[1.5, 0.0]]), np.array([[9.9, 1.0]])
    assert filled(schema, guess, low, high).values.tolist() == [[3.0, 0.0]]
    assert filled(schema, guess, low - 10, low - 9).values.tolist() == [[-8.0, -10.0]]


def test_intervals_hold_the_true_values() -> None:
    rows = drawn(80)
    victim = victim_of(boosted(rows))
    cells, schema = victim.cells(), Schema.of(victim.head.names, rows.values)
    bins = cells.bins(rows.values)
    low, high = intervals(cells, schema, Guess(bins, bins, rows.labels, 8, True, 0.0))
    assert (low <= rows.values + 1e-5).all()
    assert (rows.values <= high + 1e-5).all()


def test_a_perfect_guess_in_another_order_scores_all() -> None:
    rows = drawn(50)
    schema = Schema.of(("a", "b", "c", "d"), rows.values)
    turned = Rows(rows.values[::-1], rows.labels[::-1])
    assert score(rows, turned, schema) == score(rows, rows, schema)
    assert score(rows, turned, schema).rows == 1
    half = Rows(rows.values[:25], rows.labels[:25])
    assert score(rows, half, schema).values == pytest.approx(0.5)


def test_the_command_writes_rows(tmp_path: Path, said: Said) -> None:
    model = tmp_path / "model.json"
    model.write_bytes(stump())
    code, text, _ = said("trees", str(model), "--seconds", "0.1", "--out", str(tmp_path / "o"))
    assert code == 0
    assert "12 rows, 7 with label 1" in text
    with (tmp_path / "o" / "client-0.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert len(lines) == 12
    assert {line["age_low"] for line in lines} == {"39", "40"}


def test_the_command_refuses_what_is_not_there(tmp_path: Path, said: Said) -> None:
    assert "no such file" in said("trees", str(tmp_path / "no.json"))[2]
    assert "leaves no time" in said("trees", str(tmp_path), "--seconds", "0")[2]
    assert "no captures" in said("trees", str(tmp_path))[2]


def test_models_of_two_federations_are_not_mixed() -> None:
    other = stump().replace(b'"sex"', b'"weight"')
    replies = [Reply(k, 1, None, read_forest(data, "")) for k, data in enumerate((stump(), other))]
    with pytest.raises(ConfigError, match="differ in features"):
        victims(replies)
