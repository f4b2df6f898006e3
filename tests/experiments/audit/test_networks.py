"""Networks as other people write them: attention, recurrence, and what they return."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fedsim
from attacks import ATTACKS
from fedsim.types import Batch
from tests.experiments.audit.conftest import loss

IMAGE, LABEL = torch.rand(1, 3, 8, 8, generator=torch.Generator().manual_seed(3)), torch.tensor([2])


def victim_of(network: nn.Module, objective: Any = loss, **knows: Any) -> fedsim.Update:
    """The update of one image of class 2."""
    value = objective(network.eval(), Batch(IMAGE, LABEL))
    gradients = torch.autograd.grad(value, list(network.parameters()))
    return fedsim.Update.of(
        network,
        gradients=list(gradients),
        loss=objective,
        image_shape=(3, 8, 8),
        **{"num_examples": 1, **knows},
    )


class Patches(nn.Module):
    """A vision transformer of one block."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.patch, self.block, self.head = nn.Conv2d(3, 16, 4, 4), block, nn.Linear(16, 5)

    def forward(self, images: Tensor) -> Tensor:
        tokens = self.patch(images).flatten(2).transpose(1, 2)
        mixed = self.block(tokens)
        tokens = mixed[0] if isinstance(mixed, tuple) else mixed
        return self.head(tokens.mean(1))  # type: ignore[no-any-return]


class Attention(nn.MultiheadAttention):
    """Self-attention by the fused kernel."""

    def forward(self, tokens: Tensor) -> Tensor:  # type: ignore[override]
        mixed: Tensor = super().forward(tokens, tokens, tokens, need_weights=False)[0]
        return mixed


def encoder() -> nn.Module:
    return nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 1)


@pytest.mark.parametrize(
    "block",
    [
        lambda: Attention(16, 2, batch_first=True),
        encoder,
        lambda: nn.LSTM(16, 16, batch_first=True),
    ],
)
@pytest.mark.parametrize("attack", ["inverting", "dlg", "bayes"])
@pytest.mark.filterwarnings("ignore:.*vmap")
def test_searches_differentiate_twice(block: Any, attack: str) -> None:
    guess = fedsim.attack(victim_of(Patches(block())), attack, steps=2, quiet=True)
    assert guess.objective is not None
    assert guess.objective > 0


def test_restarts_differentiate_attention_twice_in_lanes() -> None:
    victim = victim_of(Patches(encoder()))
    guess = fedsim.attack(victim, "inverting", steps=2, restarts=2, quiet=True)
    assert guess.objective is not None


def test_an_attack_that_fails_is_a_line_of_suited(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("no such kernel")

    monkeypatch.setattr(ATTACKS["dlg"], "guess", fail)
    found = fedsim.suited(victim_of(Patches(encoder())))
    assert found.reasons["dlg"] == "it fails (RuntimeError: no such kernel)"
    assert {"inverting", "bayes"} <= set(found.attacks)
