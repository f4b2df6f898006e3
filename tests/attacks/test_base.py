"""What an attack inherits: one guess for each observation, in order."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch

from attacks.base import Attack, Job, Reconstruction
from fedsim.store.capture import Observation
from fedsim.tasks.base import Task
from fedsim.types import Batch
from tests.attacks.images.cases import rng


@dataclass(frozen=True)
class Single(Attack):
    """Draws one pixel and adds what was prepared."""

    def guess(
        self, observation: Observation, task: Task, rng: torch.Generator, job: Job
    ) -> Reconstruction:
        assert job.prepared is not None
        pixel = torch.rand(1, generator=rng) + job.prepared["shift"]
        return Reconstruction(Batch(pixel, torch.tensor([observation.key.client])))


def test_a_guess_of_one_observation_makes_an_attack(
    victim: Callable[..., tuple[Task, Observation]], pictures: Callable[..., Batch]
) -> None:
    task, first = victim(pictures(1, 3), client=4)
    _, second = victim(pictures(1, 3), client=7)
    job = Job(prepared={"shift": torch.tensor(10.0)})
    recovered = Single().reconstruct([first, second], task, [rng(0), rng(1)], job)
    assert [int(one.guess.labels) for one in recovered] == [4, 7]
    drawn = [float(torch.rand(1, generator=rng(seed)) + 10) for seed in (0, 1)]
    assert [float(one.guess.inputs) for one in recovered] == drawn
    with pytest.raises(NotImplementedError, match="Attack has neither guess nor reconstruct"):
        Attack().guess(first, task, rng(0), job)
