"""Whether a search found something: its guess beside the mean of the prior, and between."""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from attacks.base import Job, Reconstruction
from attacks.images.victims import Evidence
from attacks.observed.pixel_prior import PixelPrior
from fedsim.records import Certificate
from fedsim.store.capture import Observation
from fedsim.tasks.base import Task
from fedsim.types import Batch, Tensors

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
