"""Labels and their counts, read exactly from undefended updates."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import nn

from attacks.base import Job
from attacks.labels import count_labels, find_head, infer_label, known_labels, round_counts
from fedsim.capture import Observation
from fedsim.errors import CannotAttack
from fedsim.tasks.base import Task, state
from fedsim.types import Batch

Victim = Callable[..., tuple[Task, Observation]]
Pictures = Callable[..., Batch]
REPEATS = {4: [7, 7, 7, 1], 16: [0, 0, 0, 0, 0, 0, 9, 9, 9, 4, 4, 4, 4, 2, 8, 8]}


def rng() -> torch.Generator:
    return torch.Generator().manual_seed(5)


@pytest.mark.parametrize("label", range(10))
def test_one_label(victim: Victim, pictures: Pictures, label: int) -> None:
    for step_size in (None, 0.1):
        task, seen = victim(pictures(1, label), step_size=step_size)
        head = find_head(task.build())
        assert (head.weight, head.bias) == ("fc.weight", "fc.bias")
        assert infer_label(seen.update(), head) == label


@pytest.mark.parametrize("label", range(4))
def test_one_label_without_bias(label: int) -> None:
    network = nn.Sequential(nn.Tanh(), nn.Linear(5, 4, bias=False))
    softmax, features = torch.tensor([0.4, 0.3, 0.2, 0.1]), torch.tensor([-3.0, 1, -2, 1, 0.5])
    rows = torch.outer(softmax - torch.eye(4)[label], features)
    # The features sum to a negative number, where the shortcut by row sums fails.
    assert rows.sum(1).argmin() != label
    assert infer_label({"1.weight": rows}, find_head(network)) == label


def test_one_label_needs_the_layer() -> None:
    head = find_head(nn.Linear(5, 2, bias=False))
    with pytest.raises(CannotAttack, match=r"labels: 2 weight rows without a bias are opposite"):
        infer_label({"weight": torch.ones(2, 5)}, head)
    with pytest.raises(CannotAttack, match=r"labels: 'weight' was not sent"):
        infer_label({}, head)
    with pytest.raises(CannotAttack, match=r"labels: the model has no linear layer\."):
        find_head(nn.Conv2d(1, 1, 1))


@pytest.mark.parametrize("step_size", [None, 0.05])
@pytest.mark.parametrize("size", REPEATS)
@pytest.mark.parametrize("seed", range(3))
def test_counts(
    victim: Victim, pictures: Pictures, size: int, seed: int, step_size: float | None
) -> None:
    labels = REPEATS[size]
    task, seen = victim(pictures(size, *labels, size=32, seed=seed), step_size=step_size)
    expected = torch.bincount(torch.tensor(labels), minlength=10)
    assert torch.equal(count_labels(seen, task, size, rng()), expected)
    assert torch.equal(known_labels(seen, task, rng(), Job()), torch.tensor(sorted(labels)))


def test_auxiliary_rows_help_on_a_trained_model(victim: Victim, pictures: Pictures) -> None:
    expected = torch.bincount(torch.tensor(REPEATS[16]), minlength=10)
    private, public = (classes(pictures, seed) for seed in (0, 1))
    rows = [10 * label + i for label, n in enumerate(expected.tolist()) for i in range(n)]
    task, seen = victim(private[rows], model="mlp")
    assert torch.equal(count_labels(seen, task, 16, rng(), public), expected)
    network = task.model(seen.sent)
    optimizer = torch.optim.Adam(network.parameters(), lr=0.001)
    for _ in range(10):
        optimizer.zero_grad()
        task.loss(network, public).backward()
        optimizer.step()
    assert task.evaluate(network, [private])["accuracy"] > 0.9
    trained = replace(seen, sent=state(network), received=task.gradient(network, private[rows]))
    informed = count_labels(trained, task, 16, rng(), public)
    blind = count_labels(trained, task, 16, rng())
    assert 2 * (informed - expected).abs().sum() <= (blind - expected).abs().sum()


def classes(pictures: Pictures, seed: int) -> Batch:
    """Ten rows of each class: the class's own picture under noise."""
    labels = torch.arange(10).repeat_interleave(10)
    means = pictures(10, *range(10)).inputs[labels]
    noise = torch.randn(means.shape, generator=torch.Generator().manual_seed(seed))
    return Batch((means + 0.3 * noise).clamp(0, 1), labels)


def test_known_labels_are_those_granted(victim: Victim, pictures: Pictures) -> None:
    task, seen = victim(pictures(2, 3, 4), labels=(8, 2))
    assert known_labels(seen, task, rng(), Job()).tolist() == [8, 2]


def test_counting_needs_the_bias_and_its_scale(victim: Victim, pictures: Pictures) -> None:
    task, seen = victim(pictures(2, 3, 4), step_size=0.1, learning_rate=None)
    where = "round-0001-client-0000: the scale of a FedAvg update needs learning_rate, which"
    with pytest.raises(CannotAttack, match=re.escape(where)):
        count_labels(seen, task, 2, rng())
    received = {name: value for name, value in seen.received.items() if name != "fc.bias"}
    with pytest.raises(CannotAttack, match=r"counting 2 labels needs the bias of 'fc', which"):
        count_labels(replace(seen, received=received), task, 2, rng())


@pytest.mark.parametrize(
    ("counts", "total", "expected"),
    [
        ([1.2, 0.5, 2.3], 4, [1, 1, 2]),
        ([1.5, 1.5, 0.0], 3, [2, 1, 0]),
        ([-0.4, 1.9, 2.5], 4, [0, 2, 2]),
        ([9.0, 0.0, 3.0], 4, [3, 0, 1]),
    ],
)
def test_rounding(counts: list[float], total: int, expected: list[int]) -> None:
    assert round_counts(torch.tensor(counts), total).tolist() == expected
