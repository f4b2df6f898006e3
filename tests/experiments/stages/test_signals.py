"""Signals against updates that are computed here, and captures that do not change with them."""

import json
import math
from typing import Any

import pytest
import torch

from clients.train import LocalTrainer
from experiments.report.appendix import signal_table
from experiments.stages.signals import SignalRow, signals
from fedsim.cell import TaskConfig
from fedsim.defenses import build_chain
from fedsim.defenses.encoding import Encoding
from fedsim.federation import FederationConfig
from fedsim.files import read_record
from fedsim.seeds import generator
from fedsim.signals import TensorSignal, measure, ratio
from fedsim.tasks import initial_weights, make_task
from fedsim.truth import TruthRecord
from fedsim.types import Rows, Tensors
from tests.apps.cases import IMAGES, Make, simulate

MLP = TaskConfig(model="mlp", dataset="shapes")
PIXELS = torch.randint(
    0, 256, (10, 1, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
)
ROWS = Rows(PIXELS, torch.arange(10) % 3, tuple(range(10)))
TASK = make_task(MLP, ROWS)
SENT = initial_weights(TASK, MLP, 0)

DP = {"name": "dp_sgd", "clip": 0.1, "noise_multiplier": 0.5}
NOISE = {"name": "gaussian_noise", "std": 0.01}
PRUNE = {"name": "prune", "fraction": 0.9}
INT8 = {"name": "quantize", "kind": "int8"}


def trainer(*tables: dict[str, Any], **options: Any) -> LocalTrainer:
    federation = FederationConfig.model_validate({"batch_size": 4, **options})
    chain = build_chain(tables, "defense")
    return LocalTrainer(TASK, federation, chain, 0, torch.device("cpu"))


def norm(value: torch.Tensor) -> float:
    return float(value.double().square().sum().sqrt())


def test_ratio() -> None:
    assert ratio(10.0, 1.0) == pytest.approx(20.0)
    assert ratio(1.0, 10.0) == pytest.approx(-20.0)
    assert ratio(1.0, 0.0) is None
    assert ratio(0.0, 0.0) is None
    assert ratio(0.0, 1.0) == -math.inf


def test_measure() -> None:
    clean: Tensors = {"a": torch.tensor([3.0, 4.0]), "b": torch.zeros(2)}
    sent: Tensors = {"a": torch.tensor([3.0, 4.5]), "b": torch.tensor([1.0, 0.0])}
    found = measure(clean, sent, Encoding(bits=8, bucket=0))
    assert found["a"] == TensorSignal(clean=5.0, error=0.5, bytes=6, dense=8)
    assert found["a"].signal == pytest.approx(20.0)
    assert found["b"].signal == -math.inf
    assert measure(clean, clean, Encoding())["a"].signal is None


@pytest.mark.parametrize("protocol", ["fedsgd", "fedavg"])
@pytest.mark.parametrize("tables", [[NOISE], [PRUNE], [DP], [DP, PRUNE]])
def test_signals_compare_with_the_undefended_update(
    protocol: str, tables: list[dict[str, Any]]
) -> None:
    # One step, so that the way does not depend on the defense.
    options = {"protocol": protocol, "local_steps": 1, "learning_rate": 0.5}
    plain = trainer(**options).run(SENT, ROWS, 1, 3)
    defended = trainer(*tables, **options).run(SENT, ROWS, 1, 3)
    assert plain.steps == defended.steps
    assert {own.signal for own in plain.signals.values()} == {None}
    assert list(defended.signals) == [name for name, _ in TASK.build().named_parameters()]
    for name, own in defended.signals.items():
        clean, sent = plain.tensors[name], defended.tensors[name]
        moved = clean if protocol == "fedsgd" else SENT[name] - clean
        assert own.clean == pytest.approx(norm(moved), rel=1e-3)
        assert own.error == pytest.approx(norm(sent - clean), rel=1e-2, abs=1e-5)
        assert own.dense == 4 * sent.numel()


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_the_clean_update_of_several_steps_goes_the_defended_way(optimizer: str) -> None:
    options = {"protocol": "fedavg", "local_steps": 3, "optimizer": optimizer}
    # Clipping alone by far more than any norm changes nothing, and the signal says so.
    loose = {"name": "dp_sgd", "clip": 1e6, "noise_multiplier": 0.0}
    found = trainer(loose, **options).run(SENT, ROWS, 1, 3)
    assert all(value.error <= 1e-6 * value.clean for value in found.signals.values())
    noisy = trainer(DP, **options).run(SENT, ROWS, 1, 3)
    assert all(value.error > 0.1 * value.clean for value in noisy.signals.values())


def test_steps_of_plain_sgd_sum_their_clean_gradients() -> None:
    options: dict[str, Any] = {"protocol": "fedavg", "local_steps": 2, "learning_rate": 0.3}
    client = trainer(DP, **options)
    batch = TASK.encode(ROWS)
    plan = ((0, 1, 2), (3, 4, 5))
    done = client.defend(SENT, batch, plan, 1, 3)
    halfway = client.defend(SENT, batch, plan[:1], 1, 3)
    first = TASK.gradient(TASK.model(SENT), batch[[0, 1, 2]])
    second = TASK.gradient(TASK.model(SENT | halfway.tensors), batch[[3, 4, 5]])
    for name, value in done.clean.items():
        torch.testing.assert_close(value, 0.3 * (first[name] + second[name]), rtol=1e-3, atol=1e-6)


def test_measuring_changes_no_bit() -> None:
    """Every step of DP-SGD once more by hand, with nothing measured beside it."""
    options: dict[str, Any] = {"protocol": "fedavg", "local_steps": 3, "optimizer": "momentum"}
    client = trainer(DP, NOISE, **options)
    found = client.run(SENT, ROWS, 1, 3)
    chain, batch = client.chain, TASK.encode(ROWS.take(found.positions))
    rng, model = generator(0, "defense", 1, 3), TASK.model(SENT)
    optimizer = torch.optim.SGD(model.parameters(), lr=client.config.learning_rate, momentum=0.9)
    for step in found.steps:
        total: Tensors = {}
        for i in step:
            more = chain.on_gradient(TASK.gradient(model, batch[i]), rng)
            total = {k: total[k] + value for k, value in more.items()} if total else more
        total = chain.on_sum(total, rng)
        for name, parameter in model.named_parameters():
            parameter.grad = total[name] / len(step)
        optimizer.step()
    moved = {name: SENT[name] - p.detach() for name, p in model.named_parameters()}
    for name, value in chain.on_update(moved, rng).items():
        assert torch.equal(found.tensors[name], SENT[name] - value)


@pytest.mark.parametrize("protocol", ["fedsgd", "fedavg"])
def test_rows_of_a_run_a_table_and_runs_without_signals(protocol: str, make_run: Make) -> None:
    changes: dict[str, Any] = {
        "federation": {"protocol": protocol, "batch_size": 2, "rounds": 1},
        "probes": {"member": 1},
        "defenses": [
            {"name": "sign"},
            {"name": "none"},
            NOISE,
            {"name": "quantize", "kind": "int8"},
        ],
    }
    run = make_run(IMAGES, **changes)
    simulate(run)
    rows = [row for cell in run.cells for row in signals(cell)]
    assert len(rows) == 4 * 4
    assert [row.probe for row in rows].count("member") == 4
    for row in rows:
        assert SignalRow.model_validate_json(row.model_dump_json()) == row
        assert (row.signal is None) == (row.defense == "none")
        if row.signal is not None:
            assert (row.lowest or 0) <= (row.middle or 0) <= (row.highest or 0)
            assert (row.lowest or 0) <= row.signal <= (row.highest or 0)
    table = signal_table(rows, {cell.name: "" for cell in run.cells})
    named = {str(line[1]).split(" (")[0]: line[1:] for line in table.rows}
    assert list(named) == ["none", "Gaussian noise", "quantization", "sign"]
    assert named["none"][1:6] == (3, None, None, None, None)
    shares = {name: float(line[7].value) for name, line in named.items()}  # type: ignore[union-attr]
    assert shares["none"] == shares["Gaussian noise"] == 1.0
    assert shares["quantization"] == pytest.approx(1 / 4, rel=0.02)
    assert 1 / 32 <= shares["sign"] < 1 / 15

    halves = signal_table(rows, {cell.name: f"half={i % 2}" for i, cell in enumerate(run.cells)})
    settings = [str(line[0]) for line in halves.rows]
    assert settings == ["half=0", "half=0", "half=1", "half=1"]

    (cell, *_) = run.cells
    path = next(cell.truth.root.glob("*.json"))
    old = json.loads(path.read_text())
    del old["signals"]
    path.write_text(json.dumps(old))
    assert read_record(path, TruthRecord).signals == {}
    assert len(list(signals(cell))) == 3


def test_a_chain_has_the_signal_of_all_its_defenses() -> None:
    assert signal_table([], {}).rows == ()
    both = trainer(PRUNE, NOISE).run(SENT, ROWS, 1, 3).signals
    alone = trainer(PRUNE).run(SENT, ROWS, 1, 3).signals
    assert sum(value.error for value in both.values()) > sum(
        value.error for value in alone.values()
    )
    assert all(both[name].bytes > alone[name].bytes for name in both if alone[name].dense > 1000)
