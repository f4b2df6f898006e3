"""Whether a search found something: its guess against the prior's, by the attacker's evidence."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from attacks.base import Job, Reconstruction
from attacks.observed.pixel_prior import PixelPrior
from fedsim.capture import Observation
from fedsim.records import Certificate
from fedsim.tasks.base import Task
from fedsim.types import Batch, Tensors

NOTE = "the prior's mean is likelier than what the search found, and is guessed."


def pixel_prior(observation: Observation, task: Task, job: Job) -> PixelPrior:
    """The prior of the auxiliary images if they are granted, else of natural images."""
    rows = job.auxiliary().inputs if observation.knowledge.auxiliary else None
    return PixelPrior.of(rows, task.spec.input_shape).to(job.device)


def guarded(
    found: Reconstruction,
    prior: PixelPrior,
    loss: Callable[[Tensor, Tensor, Tensors], Tensor],
    observed: Tensors,
) -> Reconstruction:
    """The guess, or the prior's mean for every example where that is likelier.

    With a free scale and noise of unknown variance, ``-2 log p(update | images)`` is, up to a
    constant, ``N log(1 - cosine^2)`` over ``N`` coordinates; ``-2 log p(images)`` is the sum of
    their squared coefficients in standard deviations. A search that fitted noise gains little in
    the first and loses much in the second, since its images are rough.
    """
    images, labels = found.guess.inputs, found.guess.labels
    blank = prior.mean.float().expand_as(images)
    with torch.no_grad():
        objective = float(loss(blank, labels, observed))
    count = int(torch.stack([(value != 0).sum() for value in observed.values()]).sum())
    guess: Certificate = "guess"
    assert found.objective is not None
    cost = count * (_misfit(found.objective) - _misfit(objective)) + _rarity(prior, images)
    if cost < 0:
        return found
    return replace(
        found,
        guess=Batch(blank.clone(), labels),
        objective=objective,
        confidence=(guess,) * len(images),
        note=NOTE,
    )


def _misfit(distance: float) -> float:
    """``log(1 - cosine^2)`` of ``distance = 1 - cosine``."""
    share = min(max(distance, 1e-12), 1.0)
    return math.log(share * (2 - share))


def _rarity(prior: PixelPrior, images: Tensor) -> float:
    return float(prior.coefficients(images).square().sum())
