"""Trees that Flower's own strategy aggregates are captured as they are, and read by client."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedXgbBagging

from benchmarks import bench_trees
from benchmarks.bench_trees import Case, measured
from benchmarks.trees_federation import bagging, grown, masked, split, stroke_like
from experiments.extras.trees.clients import from_captures, victims
from experiments.extras.trees.forest import read_forest
from experiments.extras.trees.sums import read_facts
from server.eavesdropper import Eavesdropper
from server.grids.in_process import InProcessGrid
from tests.experiments.conftest import Said

PARAMETERS = {"objective": "binary:logistic", "max_depth": 3}
CLIENTS, ROUNDS = 2, 3


@pytest.fixture(scope="module")
def captures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three rounds of bagging with a tree each, and the eavesdropper around the strategy."""
    pytest.importorskip("xgboost", reason="xgboost is not installed")
    tables, folder = split(stroke_like(80, 0), CLIENTS, 40), tmp_path_factory.mktemp("captures")
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        sent = message.content.array_records["arrays"]["0"].numpy().tobytes()
        data = grown(tables[int(context.node_config["partition-id"])], sent, 1, PARAMETERS)
        reply = ArrayRecord([np.frombuffer(data, np.uint8)])
        metrics = MetricRecord({"num-examples": 40})
        return Message(RecordDict({"arrays": reply, "metrics": metrics}), reply_to=message)

    strategy = Eavesdropper(FedXgbBagging(fraction_evaluate=0.0), folder)
    empty = ArrayRecord([np.frombuffer(b"", np.uint8)])
    strategy.start(InProcessGrid(app, CLIENTS, {}), initial_arrays=empty, num_rounds=ROUNDS)
    return strategy.store.root


def test_captures_hold_what_each_client_sent(captures: Path) -> None:
    replies = from_captures(captures)
    expected = bagging(split(stroke_like(80, 0), CLIENTS, 40), ROUNDS, 1, PARAMETERS)
    for found in victims(replies):
        facts = read_facts(found)
        assert (facts.rows, facts.proven, len(found.grown)) == (40, True, ROUNDS)
        assert found.before.sum(1).tolist() == [0, CLIENTS, 2 * CLIENTS]
    thresholds = {reply.model.trees[0].value.tobytes() for reply in replies}
    assert thresholds == {reply.model.trees[0].value.tobytes() for reply in expected}


def test_the_attack_on_captures_names_the_command(captures: Path, said: Said) -> None:
    code, _, error = said("attack", str(captures))
    assert code != 0
    assert "fedsim trees" in error


def test_cyclic_replies_hold_what_was_sent_first() -> None:
    rows = stroke_like(60, 0)
    pytest.importorskip("xgboost", reason="xgboost is not installed")
    (reply,) = bagging([rows], 1, 3, PARAMETERS)
    whole = read_forest(grown(rows, b"", 5, PARAMETERS), "model")
    (victim,) = victims([type(reply)(0, 2, reply.model, whole)])
    assert len(victim.grown) == 2
    assert victim.before.sum(1).tolist() == [3, 4]


def test_the_benchmark_measures_counts_and_baselines() -> None:
    pytest.importorskip("xgboost", reason="xgboost is not installed")
    numbers = measured(Case("small", rows=60, trees=6, alter=masked), 0.2)
    assert numbers["first tree's counts"] == 1
    assert 0 < numbers["values, own columns shuffled"] <= 1
    assert set(numbers) >= {"values", "rows", "CPU s"}


def test_the_record_of_the_benchmark_is_a_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("xgboost", reason="xgboost is not installed")
    path = tmp_path / "trees.json"
    path.write_text('{"title": "a"}', encoding="utf-8")
    small: Any = (Case("small", rows=20, trees=2),)
    monkeypatch.setattr(bench_trees, "CASES", small)
    monkeypatch.setattr(bench_trees, "_RESULT", path)
    bench_trees.main(["--record", "--seconds", "0.1"])
    record = json.loads(path.read_text(encoding="utf-8"))
    assert record["title"] == "a"
    assert {row["measure"] for row in record["rows"]} >= {"values", "rows"}
