"""The doctor finds sound captures sound, and names each planted fault."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from experiments.checks.capture_check import examine
from experiments.plan.cells import Cell
from fedsim.config.federation import FederationConfig
from fedsim.errors import StoreError
from fedsim.records import SimulationRecord
from fedsim.store.capture import CaptureKey, CaptureRecord
from fedsim.store.files import hashes, read_record, save_tensors, write_json
from fedsim.tasks.base import Task
from fedsim.types import Batch, Tensors
from tests.apps.cases import IMAGES, TEXT, Make, simulate

RESNET = {
    "name": "small-resnet",
    "task": {"model": "resnet20", "dataset": "shapes", "heldout_rows": 8},
    "federation": {
        "engine": "in-process",
        "clients": 2,
        "batch_size": 4,
        "client_rows": 8,
        "learning_rate": 0.01,
    },
}
GPT2 = {
    "name": "small-gpt2",
    "task": {"model": "tiny-gpt2", "dataset": "sentences", "heldout_rows": 8, "max_length": 24},
    "federation": {"engine": "in-process", "clients": 2, "learning_rate": 0.01},
}


@pytest.mark.some(4)
@pytest.mark.parametrize(
    ("base", "protocol"),
    [(TEXT, "fedavg"), (IMAGES, "fedsgd"), (RESNET, "fedavg"), (GPT2, "fedsgd")],
)
def test_sound_captures_replay_to_rounding(
    base: dict[str, Any], protocol: str, make_run: Make
) -> None:
    run = make_run(base, federation={"protocol": protocol})
    simulate(run)
    checkup = examine(run)
    assert checkup.faults == 0
    assert len(checkup.findings) == len(run.cells[0].captures.keys())
    assert all(finding.relative_error < 1e-5 for finding in checkup.findings)
    assert all(finding.update_norm > 1e-3 for finding in checkup.findings)
    assert all(finding.dtypes == ("float32",) for finding in checkup.findings)
    assert "every capture is consistent" in checkup.text()


@pytest.mark.some(4)
@pytest.mark.parametrize(
    "defense",
    [
        {"name": "gaussian_noise", "std": 0.1},
        {"name": "prune", "fraction": 0.9},
        {"name": "sign", "stage": "sample"},
        {"name": "freeze_embeddings"},
    ],
    ids=lambda defense: defense["name"],
)
def test_defended_captures_replay_too(defense: dict[str, Any], make_run: Make) -> None:
    run = make_run(TEXT, defenses=[defense])
    simulate(run)
    checkup = examine(run)
    assert checkup.faults == 0
    assert "captures replayed: every capture is consistent" in checkup.text()


def test_a_loss_scaled_by_half_is_named(make_run: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run(IMAGES)
    plain: Callable[..., torch.Tensor] = type(task_of(run.cells[0])).loss

    def half(self: Task, network: object, batch: Batch) -> torch.Tensor:
        return 0.5 * plain(self, network, batch)

    with monkeypatch.context() as patch:
        patch.setattr("fedsim.tasks.images.ImageClassification.loss", half)
        simulate(run)
    checkup = examine(run)
    assert checkup.faults == len(checkup.findings)
    assert "the update is 0.5 times the replayed one: the client scales its loss" in checkup.text()


def task_of(cell: Cell) -> Task:
    from fedsim.config.setting import load_setting

    return load_setting(cell.config).task


@pytest.mark.slow
@pytest.mark.parametrize("base", [TEXT, RESNET], ids=["dropout", "batch-norm"])
def test_undeclared_train_mode_is_named(base: dict[str, Any], make_run: Make) -> None:
    run = make_run(base, federation={"train_mode": True})
    simulate(run)
    assert examine(run).faults == 0
    cell = run.cells[0]
    for key in cell.captures.keys():
        record = cell.captures.record(key)
        knowledge = record.knowledge.model_copy(update={"train_mode": False})
        note(cell, record.model_copy(update={"knowledge": knowledge}))
    checkup = examine(run)
    assert checkup.faults == len(checkup.findings)
    assert "the client trained in train mode, but eval mode is declared" in checkup.text()


def note(cell: Cell, changed: CaptureRecord) -> None:
    """Write a record and the hashes of all files, as a faulty server would."""
    write_json(cell.captures.tensors_path(changed.key).with_suffix(".json"), changed)
    path = cell.folder / "simulation.json"
    known = read_record(path, SimulationRecord)
    now = {"captures": hashes(cell.captures.root), "truth": hashes(cell.truth.root)}
    write_json(path, known.model_copy(update=now))


TRAINING: dict[str, Any] = {
    "precision": "bf16",
    "accumulation": 2,
    "label_smoothing": 0.1,
    "max_grad_norm": 0.1,
    "momentum": 0.5,
    "weight_decay": 0.5,
    "schedule": "cosine",
    "warmup_steps": 1,
    "proximal_mu": 0.5,
}


@pytest.mark.slow
@pytest.mark.parametrize(("over", "precision"), [("steps", "bf16"), ("rounds", "fp16")])
def test_options_of_training_replay_bit_for_bit(over: str, precision: str, make_run: Make) -> None:
    """Each capture then declares another option as it was not."""
    options = {**TRAINING, "precision": precision, "schedule_over": over, "rounds": 5}
    steps = {"protocol": "fedavg", "client_rows": 6, "batch_size": 3, "local_epochs": 2}
    task = {"model": "mlp", "image_size": 8}
    own = {"optimizer": "momentum", "strategy": "fedprox", "clients": 2}
    run = make_run(IMAGES, task=task, federation={**steps, **options, **own})
    simulate(run)
    checkup = examine(run)
    assert [finding.relative_error for finding in checkup.findings] == [0.0] * 10
    cell = run.cells[0]
    keys = cell.captures.keys()[::-1]
    lies = {}
    names = list(TRAINING) if over == "steps" else ["schedule", "label_smoothing"]
    for key, name in zip(keys, names, strict=False):
        record = cell.captures.record(key)
        training = record.knowledge.training
        assert training is not None
        lie = FederationConfig.model_fields[name].default
        lies[key] = f"with {name} = {training[name]!r}, but {lie!r} is declared"
        changed = record.knowledge.model_copy(update={"training": {**training, name: lie}})
        note(cell, record.model_copy(update={"knowledge": changed}))
    found = {finding.key: finding.faults for finding in examine(run).findings}
    assert {key for key, faults in found.items() if faults} == set(lies)
    for key, said in lies.items():
        assert found[key] == (f"the client trained {said}. Declare it as it was.",)


@pytest.mark.some(2)
@pytest.mark.parametrize("protocol", ["fedsgd", "fedavg"])
def test_a_lost_memory_is_found(protocol: str, make_run: Make) -> None:
    chain = [{"name": "error_feedback"}, {"name": "prune", "fraction": 0.9}]
    run = make_run(
        IMAGES,
        federation={"protocol": protocol, "rounds": 3, "participation": 0.7},
        defenses=[{"chain": chain}],
    )
    simulate(run)
    checkup = examine(run)
    assert {finding.relative_error for finding in checkup.findings} == {0.0}
    cell = run.cells[0]
    kept = sorted(cell.truth.root.glob("memory-*"))
    seen = [finding.key for finding in checkup.findings]
    later = [key for key in seen if any(k.client == key.client and k < key for k in seen)]
    assert len(kept) == len(seen)
    for path in kept:
        path.unlink()
    note(cell, cell.captures.record(seen[0]))
    assert [f.key for f in examine(run).findings if f.faults] == later


def rewrite(cell: Cell, key: CaptureKey, change: Callable[[Tensors], Tensors]) -> None:
    """Change what was received, hashes and all, as a faulty server would."""
    record = cell.captures.record(key)
    received = change(cell.captures.load(key).received)
    sha256 = save_tensors(cell.captures.tensors_path(key), received)
    note(cell, record.model_copy(update={"sha256": sha256, "order": tuple(received)}))


def test_wrong_parameter_order_is_named(make_run: Make) -> None:
    run = make_run(TEXT)
    simulate(run)
    cell = run.cells[0]
    prefix = "bert.encoder.layer.0.attention.self"
    first, second = f"{prefix}.query.weight", f"{prefix}.value.weight"

    def swap(received: Tensors) -> Tensors:
        return received | {first: received[second], second: received[first]}

    key = cell.captures.keys()[0]
    rewrite(cell, key, swap)
    checkup = examine(run)
    assert checkup.faults == 1
    assert f"wrong parameter order: {first!r} holds the values of {second!r}" in checkup.text()


def test_missing_buffers_are_named(make_run: Make) -> None:
    run = make_run(RESNET, federation={"rounds": 2, "train_mode": True})
    simulate(run)
    cell = run.cells[0]
    key = CaptureKey(round=2, client=0)
    record, seen = cell.captures.record(key), cell.captures.load(key)
    lean = {name: value for name, value in seen.sent.items() if "running" not in name}
    path = cell.captures.sent_path("lean")
    sha256 = save_tensors(path, lean)
    path.rename(cell.captures.sent_path(sha256))
    changed = {"sent_sha256": sha256, "sent_order": tuple(lean)}
    note(cell, record.model_copy(update=changed))
    checkup = examine(run)
    assert [f.key for f in checkup.findings if f.faults] == [key]
    assert "buffers missing from the broadcast: " in checkup.text()
    assert "running_mean" in checkup.text()


def test_made_up_updates_are_not_explained_away(make_run: Make) -> None:
    run = make_run(IMAGES)
    simulate(run)
    cell = run.cells[0]
    rewrite(cell, cell.captures.keys()[0], lambda r: {k: torch.randn_like(v) for k, v in r.items()})
    checkup = examine(run)
    assert checkup.faults == 1
    assert "the update does not follow from the true data" in checkup.text()


def test_an_unsimulated_cell_is_refused(make_run: Make, tmp_path: Path) -> None:
    run = make_run(IMAGES)
    with pytest.raises(StoreError, match=r"not simulated yet. Run fedsim simulate"):
        examine(run)
