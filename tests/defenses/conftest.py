"""Single victims in memory, as the tests of attacks have them, and updates to be filtered."""

from collections.abc import Callable

import pytest
import torch

from fedsim.defenses.base import Step
from fedsim.tasks.base import load_state
from fedsim.types import Tensors
from tests.attacks.conftest import pictures, victim
from tests.defenses.cases import Pictures, Victim

__all__ = ["pictures", "victim"]


@pytest.fixture
def step(victim: Victim, pictures: Pictures) -> Callable[[int], tuple[Step, Tensors]]:
    """A step of a LeNet on so many pictures, and its gradient."""

    def make(count: int) -> tuple[Step, Tensors]:
        batch = pictures(count, *range(count))
        task, seen = victim(batch)
        network = task.build()
        load_state(network, seen.sent)
        return Step(network, batch, task.loss), seen.received

    return make


@pytest.fixture
def update() -> Tensors:
    drawn = torch.Generator().manual_seed(1)
    return {
        "weight": 0.01 * torch.randn(40, 50, generator=drawn),
        "bias": 0.01 * torch.randn(50, generator=drawn),
        "temperature": torch.tensor(3.0),
        "seen": torch.tensor([7]),
    }
