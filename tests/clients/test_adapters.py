"""Clients that train adapters: what crosses the wire, what stays as it is, what a replay says."""

from typing import Any

import pytest
import torch

from experiments.checks.capture_check import examine
from experiments.plan.cells import Cell
from fedsim.models.adapters import is_adapter
from fedsim.store.capture import Observation
from fedsim.tasks import load_task
from tests.apps.cases import TEXT, Make, simulate

TASK: dict[str, Any] = {"lora_rank": 4, "lora_alpha": 8.0}
HEAD = {"classifier.weight", "classifier.bias"}


def observations(cell: Cell) -> list[Observation]:
    return [cell.captures.load(key) for key in cell.captures.keys()]


@pytest.mark.some(6)
@pytest.mark.parametrize("protocol", ["fedsgd", "fedavg"])
@pytest.mark.parametrize("model", ["tiny-bert", "tiny-gpt2"])
def test_adapters_alone_are_sent_and_change(model: str, protocol: str, make_run: Make) -> None:
    federation = {"protocol": protocol, "clients": 2, "rounds": 2}
    run = make_run(TEXT, task={**TASK, "model": model}, federation=federation)
    simulate(run)
    (cell,) = run.cells
    seen = observations(cell)
    assert len(seen) == 4
    head = HEAD if model == "tiny-bert" else set()
    adapters = {name for name in seen[0].sent if is_adapter(name)}
    assert all(set(observation.received) == adapters | head for observation in seen)
    size = sum(value.nbytes for value in seen[0].received.values())
    assert all(cell.captures.record(observation.key).bytes == size for observation in seen)
    first, second = seen[0].sent, seen[2].sent
    assert list(first) == list(second)
    same = {name for name in first if torch.equal(first[name], second[name])}
    assert same >= set(first) - adapters - head
    assert not same & {name for name in adapters if "lora_B" in name}
    a = {name for name in adapters if "lora_A" in name}
    if protocol == "fedsgd":
        assert same >= a  # their gradient was zero
        for observation in seen:
            moved = {name for name in a if observation.received[name].any()}
            assert moved == (set() if observation.key.round == 1 else a)
    checkup = examine(run)
    assert checkup.faults == 0
    assert all(finding.relative_error < 1e-5 for finding in checkup.findings)


@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["fedsgd", "fedavg"])
def test_defenses_work_on_adapters(protocol: str, make_run: Make) -> None:
    federation = {"protocol": protocol, "clients": 1, "rounds": 1, "learning_rate": 1.0}
    defenses: list[dict[str, object]] = [
        {"name": "gaussian_noise", "std": 0.1},
        {"name": "dp_sgd", "clip": 0.1, "noise_multiplier": 0.5},
        {"name": "prune", "fraction": 0.5},
        {"name": "sign"},
        {"name": "freeze_embeddings", "position": True},
    ]
    run = make_run(TEXT, task=TASK, federation=federation, defenses=defenses, attacks=[])
    simulate(run)
    assert examine(run).faults == 0
    noise, private, pruned, sign, plain = (observations(cell)[0].update() for cell in run.cells)
    for update in (noise, private):
        assert all((value != 0).all() for name, value in update.items() if is_adapter(name))
    kept = sum(int((value != 0).sum()) for value in pruned.values())
    assert 0 < kept <= 0.5 * sum(value.numel() for value in pruned.values()) + 1
    assert {round(x, 6) for value in sign.values() for x in value.flatten().tolist()} <= {-1, 0, 1}
    assert noise.keys() == plain.keys()


@pytest.mark.slow
def test_batch_and_seed_decide_the_adapters(make_run: Make) -> None:
    sent = []
    for folder, seed in (("a", 0), ("b", 0), ("c", 1)):
        run = make_run(TEXT, folder, task=TASK, federation={"rounds": 1}, seeds=[seed])
        simulate(run)
        sent.append(observations(run.cells[0])[0])
    assert all(torch.equal(sent[0].sent[k], sent[1].sent[k]) for k in sent[0].sent)
    assert all(torch.equal(sent[0].received[k], sent[1].received[k]) for k in sent[0].received)
    name = "bert.encoder.layer.0.attention.self.query.lora_A.default.weight"
    assert not torch.equal(sent[0].sent[name], sent[2].sent[name])
    assert load_task(run.cells[0].captures.root).spec.adapters is not None


@pytest.mark.some(2)
@pytest.mark.parametrize("protocol", ["fedsgd", "fedavg"])
def test_a_personal_factor_stays_and_moves(protocol: str, make_run: Make) -> None:
    """A first gradient of A is 0, as B is, and no later one is."""
    federation = {"protocol": protocol, "clients": 1, "rounds": 2, "learning_rate": 0.5}
    model = {**TASK, "model": "tiny-gpt2"}
    defenses = [{"name": "fedsa_lora"}]
    run = make_run(TEXT, task=model, federation=federation, defenses=defenses, attacks=[])
    simulate(run)
    (cell,) = run.cells
    first, second = observations(cell)
    assert {*first.received} == {name for name in first.sent if "lora_A" in name}
    moved = [any(value.any() for value in seen.update().values()) for seen in (first, second)]
    assert moved == [protocol == "fedavg", True]  # which takes several steps
    memory = cell.truth.memory(second.key)
    assert memory
    assert all("lora_B" in name and value.any() for name, value in memory.items())
    assert not any(second.sent[name].any() for name in memory)
    assert examine(run).faults == 0
