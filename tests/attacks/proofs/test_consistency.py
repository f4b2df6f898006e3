"""Guesses that noise, rounding, pruning or signs explain, and guesses that they do not."""

import os
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import fedsim
from attacks.proofs.consistency import Consistency, support
from attacks.proofs.whiteness import edge
from benchmarks.bench_ranks import BenchVictims
from benchmarks.treatments import TREATMENTS
from experiments.plan.cells import make_cells
from experiments.plan.config import Plan, parse_experiment
from experiments.plan.overrides import override
from fedsim.knowledge import Knowledge
from fedsim.store.capture import Observation
from fedsim.tasks.text import TextTask
from fedsim.types import Batch
from tests.attacks.victims import Victim, lines

FROZEN: dict[str, object] = {"name": "freeze_embeddings", "position": True}
DEFENSES: dict[str, dict[str, object]] = {
    "noise": {"name": "gaussian_noise", "std": 1e-5},  # 3e-5 hides words on some processors
    "half": {"name": "prune", "fraction": 0.5, "keep": "random"},
    "largest": {"name": "prune", "fraction": 0.9},
    "signs": {"name": "sign"},
    "bf16": {"name": "quantize", "kind": "bf16"},
    "int8": {"name": "quantize", "kind": "int8"},
    "clipped": {"name": "dp_sgd", "clip": 0.01, "noise_multiplier": 0.0},
}


def is_consistent(
    victim: Victim, seen: Observation, ids: list[list[int]], labels: list[int]
) -> bool:
    assert isinstance(victim.task, TextTask)
    network = victim.task.model(seen.sent)
    return support(seen, victim.task, network, ids, labels) == "consistent"


def labels_of(batch: Batch) -> list[int]:
    return batch.labels.tolist() if batch.labels.dim() == 1 else [-1] * len(batch)


def changed(ids: list[list[int]], seed: int, size: int) -> list[list[int]]:
    """The batch with one word exchanged for a random other."""
    rng = torch.Generator().manual_seed(seed)

    def draw(most: int) -> int:
        return int(torch.randint(most, (1,), generator=rng))

    row = draw(len(ids))
    place = 1 + draw(len(ids[row]) - 2)
    other = [list(line) for line in ids]
    # Ids below 5 may be special.
    other[row][place] = 5 + (other[row][place] - 5 + 1 + draw(size - 6)) % (size - 5)
    return other


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "defense"),
    [
        *product(["gpt2"], ["noise", "signs", "int8", "half", "largest", "bf16", "clipped"]),
        *product(["bert"], ["clipped", "noise", "signs"]),
    ],
)
def test_the_truth_is_told_from_others(
    model: str, defense: str, request: pytest.FixtureRequest
) -> None:
    victim: Victim = request.getfixturevalue(model)
    rows = 3
    size = victim.task.model(victim.sent).get_input_embeddings().num_embeddings  # type: ignore[operator]
    true = false = 0
    for row in range(rows):
        seen, truth = victim.capture([row], FROZEN, DEFENSES[defense])
        own, labels = lines(truth), labels_of(truth)
        true += is_consistent(victim, seen, own, labels)
        _, other = victim.capture([row + 7])
        false += is_consistent(victim, seen, lines(other), labels_of(other))
        false += is_consistent(victim, seen, changed(own, row, size), labels)
    # Noise may hide a word of a sentence, and then nothing is said of it.
    assert true >= rows - (defense == "noise")
    assert false == 0


@pytest.mark.slow
def test_batches(gpt2: Victim) -> None:
    for defense in ("noise", "int8"):
        seen, truth = gpt2.capture([3, 4], FROZEN, DEFENSES[defense])
        guessed = lines(truth)
        assert is_consistent(gpt2, seen, guessed, [-1, -1])
        assert is_consistent(gpt2, seen, guessed[::-1], [-1, -1])
        assert not is_consistent(gpt2, seen, guessed[:1], [-1])
        assert not is_consistent(gpt2, seen, [guessed[0], guessed[0]], [-1, -1])


def test_a_line_that_predicts_nothing_explains_nothing(gpt2: Victim) -> None:
    seen, truth = gpt2.capture([5], DEFENSES["signs"])
    assert isinstance(gpt2.task, TextTask)
    test = Consistency.of(seen, gpt2.task, gpt2.task.model(seen.sent))
    assert test is not None
    assert test.p_value([lines(truth)[0][:1]], [-1]) == 0


@pytest.mark.slow
def test_a_class_that_is_not_known(bert: Victim) -> None:
    seen, truth = bert.capture([2], FROZEN, DEFENSES["noise"])
    assert is_consistent(bert, seen, lines(truth), [-1])


def test_nothing_is_said_where_noise_hides_words(gpt2: Victim) -> None:
    strong = {"name": "gaussian_noise", "std": 10.0}
    seen, truth = gpt2.capture([0], FROZEN, strong)
    assert not is_consistent(gpt2, seen, lines(truth), [-1])
    assert isinstance(gpt2.task, TextTask)
    test = Consistency.of(seen, gpt2.task, gpt2.task.model(seen.sent))
    assert test is not None
    # The truth itself would pass; so would it with another word.
    assert test.p_value(lines(truth), [-1]) > 0.01
    assert test.p_value(changed(lines(truth), 0, 100), [-1]) > 0.01


FEDAVG: dict[str, Any] = {"protocol": "fedavg", "learning_rate": 0.01}


@pytest.mark.some(3)
@pytest.mark.parametrize(
    ("federation", "facts", "expected"),
    [
        (FEDAVG | {"local_steps": 1}, {"local_steps": 1, "learning_rate": 0.01}, True),
        (FEDAVG | {"local_steps": 1}, {"local_steps": 1}, True),
        (FEDAVG | {"local_steps": 4}, {"local_steps": 4, "learning_rate": 0.01}, False),
        (FEDAVG | {"local_steps": 1}, {}, False),
        (
            FEDAVG | {"local_steps": 1, "optimizer": "adamw", "learning_rate": 1e-4},
            {"local_steps": 1, "learning_rate": 1e-4, "optimizer": "adamw"},
            True,
        ),
        ({}, {"train_mode": True}, False),
        ({}, {"cohort": 2}, False),
        ({}, {"num_examples": 2}, False),
    ],
)
def test_what_is_reproducible(
    gpt2: Victim, federation: dict[str, Any], facts: dict[str, Any], expected: bool
) -> None:
    seen, truth = gpt2.capture([5], FROZEN, **federation)
    known = Knowledge.model_validate({"num_examples": 1, **facts})
    seen = replace(seen, knowledge=known)
    assert is_consistent(gpt2, seen, lines(truth), [-1]) is expected


def test_p_values_of_white_noise() -> None:
    rng = torch.Generator().manual_seed(0)
    found = torch.tensor([edge(torch.randn(60, 240, generator=rng), 1.0) for _ in range(100)])
    assert 2 <= int((found < 0.1).sum()) <= 20
    assert 35 <= int((found < 0.5).sum()) <= 65


HUB = [
    ("fedsim/gpt2-8k", "film/enron-sentences"),
    ("sentence-transformers/all-MiniLM-L6-v2", "nyu-mll/glue:cola"),
]


@pytest.mark.slow
@pytest.mark.skipif("FEDSIM_HUB" not in os.environ, reason="FEDSIM_HUB names no folder")
@pytest.mark.parametrize(("model", "data"), HUB)
def test_models_from_the_hub(model: str, data: str) -> None:
    table = {
        "name": "ranks",
        "task": {"model": model, "dataset": data, "split": "train[600:604]", "heldout_rows": 1},
        "federation": {"engine": "in-process", "batch_size": 1},
        "defenses": [FROZEN],
    }
    plan = Plan(name="ranks", experiments=(parse_experiment(override(table, ())),))
    victims = BenchVictims.of(next(iter(make_cells(plan, Path("ranks")))).config)
    client = victims.client
    task, network = client.task, client.task.model(client.sent)
    size: int = network.get_input_embeddings().num_embeddings  # type: ignore[operator]
    treatments = {one.name: one for one in TREATMENTS}
    true = false = 0
    for number, rows in enumerate(victims.batches[:3]):
        for name in ("noise 1e-03", "sign", "int8 wire", "keep top 1%"):
            seen, truth = client.observe(treatments[name], rows, number, 0.0)
            own, labels = lines(truth), labels_of(truth)
            true += support(seen, task, network, own, labels) == "consistent"
            other = changed(own, number, size)
            false += support(seen, task, network, other, labels) == "consistent"
    assert true >= 11
    assert false == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("std", "mixed", "level"),
    [(5e-4, False, "consistent"), (5e-4, True, "guess"), (4e-3, False, "guess")],
)
def test_a_picture_that_known_noise_explains(std: float, mixed: bool, level: str) -> None:
    rng = torch.Generator().manual_seed(3)
    torch.manual_seed(1)
    net = nn.Sequential(nn.Flatten(), nn.Linear(192, 48), nn.ReLU(), nn.Linear(48, 10))
    picture = torch.rand(1, 3, 8, 8, generator=rng)
    target = torch.zeros(1, 10)
    target[0, 7], target[0, 2] = (0.7, 0.3) if mixed else (1.0, 0.0)
    gradients = torch.autograd.grad(F.cross_entropy(net(picture), target), list(net.parameters()))
    noised = [part + std * torch.randn(part.shape, generator=rng) for part in gradients]
    victim = fedsim.Update.of(
        net,
        gradients=noised,
        loss=lambda model, batch: F.cross_entropy(model(batch.inputs), batch.labels),
        image_shape=(3, 8, 8),
        num_examples=1,
        defense=({"name": "gaussian_noise", "std": std},),
    )
    assert fedsim.attack(victim, "closed_form", quiet=True).confidence == (level,)
