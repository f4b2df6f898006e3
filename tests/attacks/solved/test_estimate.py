"""What an estimate is worth where the update leaves its scale open."""

from collections.abc import Callable

import pytest
import torch

from attacks.base import Job
from attacks.observed.labels import find_head
from attacks.observed.single_target import SingleTarget
from attacks.solved.estimate import Received, estimate
from attacks.solved.posterior import FITTED_SCALE, Estimator, Posterior
from fedsim.store.capture import Observation
from fedsim.tasks.base import Task
from fedsim.types import Batch

Victim = Callable[..., tuple[Task, Observation]]
Pictures = Callable[..., Batch]


@pytest.mark.parametrize(
    ("behind", "informed"), [(0.5 * FITTED_SCALE, False), (2 * FITTED_SCALE, True)]
)
def test_an_update_tells_what_it_tells_under_every_likely_scale(
    behind: float,
    informed: bool,
    victim: Victim,
    pictures: Pictures,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    task, seen = victim(pictures(1, 3), labels=(3,))

    def search(self: Estimator, target: torch.Tensor, scale: float, *_: object) -> Posterior:
        """Of full length the update tells much, and of another nothing."""
        full, image = scale == 1.0, self.prior.mean
        known = (100.0, 0.5) if full else (100.0 + behind, 1.0)
        return Posterior(
            image, target, known[0], known[1] * self.prior.error, image.flatten(), scale, 1
        )

    monkeypatch.setattr(Estimator, "search", search)
    head = find_head(task.build())
    received = Received(seen.update(), 1.0, head, SingleTarget(torch.tensor([3]), 1.0, 0.0))
    found = estimate(seen, task, received, torch.Generator().manual_seed(0), Job())
    assert found.posterior.scale == 1.0
    assert found.posterior.error == 0.5 * found.prior.error
    assert found.informed == informed
