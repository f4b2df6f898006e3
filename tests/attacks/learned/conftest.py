"""Rows and weights that the tests of learned attacks share."""

from collections.abc import Callable

import pytest
import torch

from fedsim.store.capture import Observation
from fedsim.tasks.base import Task, state
from fedsim.types import Batch, Tensors

Victim = Callable[..., tuple[Task, Observation]]


@pytest.fixture(scope="module")
def rows() -> Batch:
    """Smooth images of four classes, their colours by class."""
    draw = torch.Generator().manual_seed(5)
    labels = torch.arange(300) % 4
    coarse = torch.rand(300, 3, 3, 3, generator=draw)
    images = torch.nn.functional.interpolate(coarse, (16, 16), mode="bilinear")
    return Batch((0.3 * images + 0.2 * labels[:, None, None, None]).clamp(0, 1), labels)


@pytest.fixture(scope="module")
def sent(rows: Batch) -> Callable[..., tuple[Task, Tensors]]:
    """The task, and the weights of a LeNet after some steps of Adam on other rows."""

    def train(victim: Victim) -> tuple[Task, Tensors]:
        task, seen = victim(rows[:1], classes=4)
        network = task.model(seen.sent)
        optimizer = torch.optim.Adam(network.parameters(), 1e-2)
        for _ in range(30):
            optimizer.zero_grad()
            task.loss(network, rows[:100]).backward()
            optimizer.step()
        return task, state(network)

    return train
