"""The null baseline: a guess made without looking at the update."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from attacks.base import Attack, Job, Reconstruction
from attacks.observed.prior import prior_guess
from fedsim.capture import Observation
from fedsim.tasks.base import Task


@dataclass(frozen=True)
class PriorOnly(Attack):
    """Guess from the auxiliary rows alone, without the update: the null baseline.

    An attack leaks only what it finds beyond this guess. For images it is the mean auxiliary image,
    or grey 0.5 without auxiliary rows. For texts it is the most frequent auxiliary token at each
    position, as long as the granted length or else the median auxiliary row; without rows it is an
    empty sentence. Labels are the granted ones, else the most frequent auxiliary class, else -1.
    """

    def abridged(self) -> tuple[Attack, float]:
        """The whole attack, which takes no steps."""
        return self, 0.0

    def guess(
        self, observation: Observation, task: Task, rng: torch.Generator, job: Job
    ) -> Reconstruction:
        """The same guess for every example."""
        del rng
        return Reconstruction(prior_guess(observation, task, job))
