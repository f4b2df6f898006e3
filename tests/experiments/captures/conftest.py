"""A small language model and one sentence's gradient, as somebody else's program holds them."""

import copy
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedsim.models import TEXT_MODELS, transformer

SENTENCE = "The code of the door is 4471."


@dataclass
class Held:
    """The objects that a notebook holds."""

    model: Any
    tokenizer: Any
    gradients: list[Tensor]
    before: dict[str, Tensor]
    after: dict[str, Tensor]


@pytest.fixture(scope="session")
def held() -> Held:
    """GPT-2 in a tiny size, one sentence's gradient, and the weights after a step on it."""
    folder = str(TEXT_MODELS["tiny-gpt2"])
    tokenizer = transformer.tokenizer(folder)
    architecture = transformer.architecture(folder, 0)
    model: Any = transformer.build(architecture, "language-modelling", seed=1)
    ids = torch.tensor([[*tokenizer(SENTENCE)["input_ids"], tokenizer.eos_token_id]])
    gradients = torch.autograd.grad(model(ids, labels=ids).loss, list(model.parameters()))
    trained = copy.deepcopy(model)
    with torch.no_grad():
        for parameter, gradient in zip(trained.parameters(), gradients, strict=True):
            parameter -= 0.1 * gradient
    before, after = (dict(one.state_dict()) for one in (model, trained))
    return Held(model, tokenizer, list(gradients), before, after)


class Net(nn.Module):
    """Somebody's network of images."""

    def __init__(self, *, bias: bool = True) -> None:
        super().__init__()
        self.features = nn.Conv2d(1, 6, 3, stride=2, padding=1)
        self.head = nn.Linear(6 * 4 * 4, 5, bias=bias)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.features(images).sigmoid().flatten(1))  # type: ignore[no-any-return]


def loss(model: Any, batch: Any) -> Tensor:
    """Somebody's loss."""
    return F.cross_entropy(model(batch.inputs), batch.labels)
