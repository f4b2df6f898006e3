"""The null baseline: a guess made without looking at the update."""

from dataclasses import dataclass

import torch

from attacks.base import Attack, Job, Reconstruction
from attacks.observed.prior import prior_guess
from fedsim.store.capture import Observation
from fedsim.tasks.base import Task


@dataclass(frozen=True)
class PriorOnly(Attack):
    """Guess from the auxiliary rows alone, without the update: the null baseline.

    An attack leaks only what it finds beyond this guess, which knows all that is granted. An image
    is the mean auxiliary image, of its class where labels are granted; grey 0.5 without auxiliary
    rows. A row of a table has the most frequent value of each column. A text is made of frequent
    words so that its ROUGE-L to the auxiliary texts is largest, to those of its class or nearest to
    its length where these are granted (of a batch with both, its length), and no longer than
    granted; without rows it is empty. Labels are the granted ones, else the most frequent auxiliary
    class, else -1.
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
