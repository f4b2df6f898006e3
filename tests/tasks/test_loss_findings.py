"""What is unusual of a loss is said before any attack; nothing is said of usual ones."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import fedsim
from experiments.captures.guess import Guess
from experiments.captures.update import Update
from fedsim.errors import ConfigError
from fedsim.types import Batch

COLUMNS = 12


def net(outputs: int = 4, *, dropout: float = 0.0) -> nn.Module:
    torch.manual_seed(1)

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.h = nn.Linear(COLUMNS, 24), nn.Linear(24, outputs)

        def forward(self, x: Tensor) -> Tensor:
            hidden = F.relu(self.a(x.flatten(1)))
            return self.h(F.dropout(hidden, dropout) if dropout else hidden)  # type: ignore[no-any-return]

    return Net()


def plain(model: Any, batch: Any) -> Tensor:
    return F.cross_entropy(model(batch.inputs), batch.labels)


def noisy(model: Any, batch: Any) -> Tensor:
    inputs = batch.inputs + 0.1 * torch.randn_like(batch.inputs)
    return F.cross_entropy(model(inputs), batch.labels)


def masked(model: Any, batch: Any) -> Tensor:
    kept = torch.rand_like(batch.inputs) < 0.5
    return F.cross_entropy(model(batch.inputs * kept), batch.labels)


def drawn(model: Any, batch: Any) -> Tensor:
    rng = torch.Generator().manual_seed(5)
    inputs = batch.inputs + 0.1 * torch.randn(batch.inputs.shape, generator=rng)
    return F.cross_entropy(model(inputs), batch.labels)


def penalised(model: Any, batch: Any) -> Tensor:
    squares = torch.stack([value.square().sum() for value in model.parameters()])
    return F.cross_entropy(model(batch.inputs), batch.labels, reduction="sum") + squares.sum()


def contrastive(model: Any, batch: Any) -> Tensor:
    rows = F.normalize(model(batch.inputs))
    return F.cross_entropy(rows @ rows.T, torch.arange(len(rows))) + plain(model, batch)


def standardised(model: Any, batch: Any) -> Tensor:
    outputs = model(batch.inputs)
    return F.cross_entropy(outputs - outputs.mean(0), batch.labels)


def cox(model: Any, batch: Any) -> Tensor:
    time, event = batch.labels.float().mT
    order = time.argsort(descending=True)
    risk, event = model(batch.inputs).squeeze(-1)[order], event[order]
    mean: Tensor = ((risk - risk.logcumsumexp(0)) * event).sum() / event.sum().clamp(min=1)
    return -mean


def update(model: nn.Module, loss: Any, labels: Tensor) -> Update:
    rows = torch.rand(len(labels), COLUMNS, generator=torch.Generator().manual_seed(3))
    value = loss(model, Batch(rows, labels))
    slopes = torch.autograd.grad(value, list(model.parameters()), allow_unused=True)
    facts: dict[str, Any] = {"input_shape": (COLUMNS,), "num_examples": len(labels)}
    return fedsim.Update.of(model, gradients=list(slopes), loss=loss, **facts)  # type: ignore[no-any-return]


RANDOM: dict[str, tuple[Callable[[], nn.Module], Any]] = {
    "dropout": (lambda: net(dropout=0.5), plain),
    "noise": (net, noisy),
    "mask": (net, masked),
}


@pytest.mark.parametrize("name", RANDOM)
def test_a_random_loss_is_named(name: str) -> None:
    model, loss = RANDOM[name]
    victim = update(model(), loss, torch.tensor([2]))
    assert "the loss draws random numbers" in victim.doubt
    if name != "dropout":  # the others change the first layer's input
        return
    guess: Guess = fedsim.attack(victim, "closed_form", quiet=True)
    assert not any(guess.certified)
    assert "the loss draws random numbers" in guess.note
    assert "the first layer shows this input alone" not in guess.note


@pytest.mark.parametrize("loss", [plain, drawn])
def test_usual_losses_are_not(loss: Any) -> None:
    assert not update(net(), loss, torch.tensor([2, 1])).doubt


def test_a_penalty_couples_no_examples() -> None:
    assert "couples" not in update(net(), penalised, torch.tensor([2, 1])).doubt


@pytest.mark.parametrize("loss", [contrastive, standardised])
def test_a_loss_that_couples_examples_is_named(loss: Any) -> None:
    doubt = update(net(), loss, torch.tensor([2, 1])).doubt
    assert doubt.startswith("the loss couples the examples of a batch")


def test_a_survival_loss_has_two_targets_and_nothing_of_one_row() -> None:
    labels = torch.tensor([[3.0, 1.0], [1.0, 1.0], [2.0, 0.0]])
    said = "couples the examples of a batch and takes two targets a row, as (time, event)"
    victim = update(net(1), cox, labels)
    assert said in victim.doubt
    assert fedsim.attack(victim, "dlg", quiet=True, budget=2).objective is not None
    with pytest.raises(ConfigError, match="the gradient of one example alone is zero"):
        update(net(1), cox, labels[:1])


def test_a_loss_without_labels_is_matched_by_dlg() -> None:
    def rebuilt(model: Any, batch: Any) -> Tensor:
        return F.mse_loss(model(batch.inputs), batch.inputs.flatten(1))

    victim = update(net(COLUMNS), rebuilt, torch.zeros(1, dtype=torch.int64))
    guess: Guess = fedsim.attack(victim, "dlg", quiet=True, budget=10)
    assert guess.objective is not None
    assert guess.objective < 1e-6


def triplets(model: Any, batch: Any) -> Tensor:
    rows = model(batch.inputs)
    return F.triplet_margin_loss(rows[0::3], rows[1::3], rows[2::3], margin=5.0)


def pairs(model: Any, batch: Any) -> Tensor:
    rows = F.normalize(model(batch.inputs))
    alike = rows @ rows.T - 9 * torch.eye(len(rows))
    return F.cross_entropy(alike, torch.arange(len(rows)) ^ 1)


def test_a_loss_of_triples_couples_examples() -> None:
    doubt = update(net(), triplets, torch.tensor([0, 1, 2])).doubt
    assert doubt.startswith("the loss couples the examples of a batch")


def test_a_loss_that_needs_two_examples_is_refused_for_that() -> None:
    with pytest.raises(ConfigError, match="runs on 2 examples and fails on one"):
        update(net(), pairs, torch.tensor([0, 1]))
