"""Thirty ordinary clients, with no fault in them: nothing is doubted, and a search runs."""

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import fedsim
from experiments.captures.update import Update


def dense(*middle: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 24), *middle, nn.Linear(24, 4))


def conv(*middle: nn.Module, wide: int = 512) -> nn.Module:
    first = nn.Conv2d(1, 8, 3, padding=1)
    return nn.Sequential(first, *middle, nn.Flatten(), nn.Linear(wide, 4))


NETS: list[Callable[[], nn.Module]] = [
    lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 4)),
    lambda: dense(nn.ReLU()),
    lambda: dense(nn.LayerNorm(24), nn.GELU()),
    lambda: dense(nn.ReLU(), nn.Linear(24, 24), nn.Tanh()),
    lambda: dense(nn.ReLU(), nn.Dropout(0.5)),
    lambda: conv(nn.Sigmoid()),
    lambda: conv(nn.BatchNorm2d(8), nn.ReLU()),
    lambda: conv(nn.GroupNorm(2, 8), nn.ReLU(), nn.MaxPool2d(2), wide=128),
    lambda: conv(nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1, groups=8), nn.ReLU()),
    lambda: conv(nn.SiLU(), nn.AdaptiveAvgPool2d(1), wide=8),
]
SGD, ADAM = torch.optim.SGD, torch.optim.Adam
LOOPS: list[Any] = [(SGD, 1, {"lr": 0.1}), (SGD, 4, {"lr": 0.1}), (ADAM, 3, {"lr": 1e-3})]
PLAIN = r"after: \d+ tensors by name(; its normalisation layers counted \d+ batch(es, .*)?)?"


@pytest.mark.some(8)
@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("make", NETS)
def test_an_ordinary_client_raises_no_doubt_and_no_refusal(make: Any, loop: Any) -> None:
    torch.manual_seed(0)
    net, (optimizer, steps, options) = make().train(), loop
    pictures, labels = torch.rand(2, 1, 8, 8), torch.tensor([0, 3])
    before = {key: value.clone() for key, value in net.state_dict().items()}
    taken = optimizer(net.parameters(), **options)
    for _ in range(steps):
        taken.zero_grad()
        F.cross_entropy(net(pictures), labels).backward()
        taken.step()
    told: Any = {"image_shape": (1, 8, 8), "input_range": (0, 1), "num_examples": 2, **options}
    loss = lambda network, batch: F.cross_entropy(network(batch.inputs), batch.labels)  # noqa: E731
    update = Update.of(net, before=before, after=net.state_dict(), loss=loss, **told)
    assert re.fullmatch(PLAIN, update.match)
    guess = fedsim.attack(update, "inverting", budget=0.5, quiet=True)
    causes = ("as under", "as where", "as by", "no test tells", "labels are", "next to nothing")
    assert not [cause for cause in (update.doubt, *causes) if cause and cause in guess.note]
    assert not update.doubt
