"""What image matching searches for, the loss, and whether a search found something."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import torch
from torch import Tensor

from attacks.base import Job, Reconstruction
from attacks.images.image_losses import ImageLoss
from attacks.observed.pixel_prior import PixelPrior
from attacks.observed.replay import Replay
from fedsim.records import Certificate
from fedsim.store.capture import Observation
from fedsim.tasks.base import Task
from fedsim.types import Batch, Tensors


@dataclass(frozen=True)
class RoundsLoss:
    """The mean over rounds of the matching loss, each at the weights broadcast in that round.

    The temporal objective of TGIAs-RO (Li et al. 2023, arXiv:2306.07883) without its robust
    statistics, which are against rounds that mislead. With what was received in round t being
    ``y_t = g_t + n_t``, g_t the true gradient and n_t noise drawn anew, the mean over R rounds of

        1 - <g_t(x), y_t> / (|g_t(x)| |y_t|)

    has from the noise a standard deviation that falls as ``1 / sqrt(R)``, while what tells the
    truth from another x stays: R rounds of noise std are worth one of ``std / sqrt(R)``.

    Attributes:
        losses: one for each round.
    """

    losses: tuple[ImageLoss, ...]

    @property
    def model(self) -> Replay:
        """Of one of the rounds."""
        return self.losses[0].model

    @property
    def smoother(self) -> float:
        """Factor of the total variation."""
        return self.losses[0].smoother

    def __call__(self, images: Tensor, labels: Tensor, observed: Tensors) -> Tensor:
        """The loss of ``images``, a scalar; what was observed is ``(round, ...)``."""
        parts = [
            loss(images, labels, {name: value[i] for name, value in observed.items()})
            for i, loss in enumerate(self.losses)
        ]
        return torch.stack(parts).mean()

    def evidence(self, images: Tensor, labels: Tensor, observed: Tensors) -> tuple[Tensor, Tensor]:
        """The mean loss, and the sum of the surprises."""
        losses, surprises = [], []
        for i, loss in enumerate(self.losses):
            of_round = {name: value[i] for name, value in observed.items()}
            distance, surprise = loss.evidence(images, labels, of_round)
            losses.append(distance)
            surprises.append(surprise)
        return torch.stack(losses).mean(), torch.stack(surprises).sum()


Evidence: TypeAlias = Callable[[Tensor, Tensor, Tensors], tuple[Tensor, Tensor]]
"""(images, labels, observed) -> (matching loss, -log p(observed | images))."""
MatchingLoss: TypeAlias = ImageLoss | RoundsLoss


@dataclass(frozen=True)
class VictimGroup:
    """Observations of one shape.

    Attributes:
        labels: int64 ``(victim, example)``.
        observed: gradients ``(victim, ...)`` in float32.
        prior: what the attacker knows of images beforehand.
    """

    loss: MatchingLoss
    labels: Tensor
    observed: Tensors
    prior: PixelPrior
    rngs: Sequence[torch.Generator]
    job: Job

    def lanes(self, victims: Sequence[int]) -> tuple[Tensor, Tensors]:
        """Labels and gradients of these victims, one lane each."""
        index = torch.tensor(list(victims), device=self.labels.device)
        return self.labels[index], {name: value[index] for name, value in self.observed.items()}


NOTE = "the prior's mean is likelier than what the search found, and is guessed."
SMOOTHED = "what the search found is likelier when smoothed by the prior, and is so guessed."
_NOISE = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 3.0, 10.0, 30.0)
"""Variances tried for what the search got wrong, in those of a coefficient of the prior."""


def pixel_prior(observation: Observation, task: Task, job: Job) -> PixelPrior:
    """The prior of the auxiliary images if they are granted, else of natural images."""
    rows = job.auxiliary().inputs if observation.knowledge.auxiliary else None
    return PixelPrior.of(rows, task.spec.input_shape).to(job.device)


def guarded(
    reconstruction: Reconstruction,
    prior: PixelPrior,
    evidence: Evidence,
    observed: Tensors,
) -> Reconstruction:
    """The likeliest of the guess, the prior's mean for every example, and images between.

    A search that fitted noise gains little in the likelihood of the update and loses much in the
    prior, since its images are rough. Smoothed, they may keep what is true.
    """
    images, labels = reconstruction.guess.inputs, reconstruction.guess.labels
    blank = prior.mean.float().expand_as(images).clone()
    tried = {math.inf: blank, 0.0: images}
    tried |= {
        noise: prior.smoothed(images, noise * prior.error).float().clamp(0, 1) for noise in _NOISE
    }
    costs = {
        noise: unlikelihood(Batch(candidate, labels), prior, evidence, observed)
        for noise, candidate in tried.items()
    }
    noise = min(costs, key=lambda each: costs[each])
    if not noise:
        return reconstruction
    guess: Certificate = "guess"
    return replace(
        reconstruction,
        guess=Batch(tried[noise], labels),
        objective=costs[noise][1],
        confidence=(guess,) * len(images),
        note=NOTE if tried[noise] is blank else SMOOTHED,
    )


def unlikelihood(
    batch: Batch, prior: PixelPrior, evidence: Evidence, observed: Tensors
) -> tuple[float, float]:
    """``-log p(images | update)`` up to a constant, in nats, and the distance of the update."""
    with torch.no_grad():
        distance, surprise = (
            float(term) for term in evidence(batch.inputs, batch.labels, observed)
        )
    return surprise + float(prior.rarity(batch.inputs)), distance
