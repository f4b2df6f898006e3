"""The Bayes optimal adversary's search: the likeliest images under a prior of images."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from attacks.base import Job, Reconstruction
from attacks.engine.descent import Objective
from attacks.images.image_matching import ImageMatching, best_restarts
from attacks.images.unrolled import UnrolledSearch
from attacks.images.victims import Evidence, VictimGroup, pixel_prior, unlikelihood
from attacks.observed.declared import declared
from attacks.observed.known_labels import known_labels
from attacks.observed.local_steps import SimulatedSteps
from attacks.observed.pixel_prior import PixelPrior
from attacks.observed.replay import replay
from fedsim.defenses.base import Distortion
from fedsim.store.capture import Observation
from fedsim.tasks.base import Task
from fedsim.types import Batch, Tensors

_START = 0.1
"""Deviation of the first coefficients, so that the images of a batch start apart."""


@dataclass(frozen=True)
class Bayes(ImageMatching):
    """Maximise the posterior probability of a batch of images, given the update.

    Balunovic et al. 2022, "Bayesian Framework for Gradient Leakage", approximate the Bayes optimal
    adversary by the maximum of ``log p(update | images) + log p(images)``, and read other attacks
    as choices of the two. Here the likelihood is the defense's if ``adaptive``, else that of
    Gaussian noise of unknown variance, see ``attacks.images.image_losses``; the prior is the
    Gaussian of the attacker's auxiliary images, or of natural images in general, see
    ``attacks.observed.pixel_prior``. Adam searches the prior's coefficients in standard deviations,
    from near the mean image; its rate falls to a tenth at 3/8, 5/8 and 7/8 of the steps. There is
    no weight to choose: under noise the prior tells more, without a defense the update does.

    Several local steps, up to ten, are taken again on the guess, with SGD, momentum and weight
    decay, where what is granted tells them; the order of the images is then part of the search, see
    ``attacks.images.unrolled``. Else they count as one step along the mean gradient.

    ``closed_form`` makes the same estimate of one image by Gauss-Newton, of networks that it can
    solve layer by layer; this search needs a gradient alone, and takes batches. Where a gradient is
    far from linear in the image, as that of ResNet20, it ends in other images.

    Attributes:
        steps: of Adam.
        learning_rate: of Adam at the start, in standard deviations of a coefficient.
        unroll: take a client's local steps again, instead of one along the mean gradient.
        orders: of the images over local steps, that are searched with at first.
        evaluations: of the posterior over local steps, once the order is chosen.
    """

    title: ClassVar[str] = "Bayes"
    estimates: ClassVar[frozenset[Distortion]] = frozenset({"noise"})

    steps: Annotated[int, Field(ge=1)] = 1000
    learning_rate: Annotated[float, Field(gt=0)] = 0.1
    unroll: bool = True
    orders: Annotated[int, Field(ge=1)] = 24
    evaluations: Annotated[int, Field(ge=1)] = 300

    def reconstruct(
        self,
        observations: Sequence[Observation],
        task: Task,
        rngs: Sequence[torch.Generator],
        job: Job,
    ) -> list[Reconstruction]:
        """One guess for each observation; local steps are taken again client by client."""
        guesses: dict[int, Reconstruction] = {}
        for index, (seen, rng) in enumerate(zip(observations, rngs, strict=True)):
            if (steps := self._steps(seen, task, job)) is not None:
                guesses[index] = self._unrolled(seen, steps, rng, job)
        others = [index for index in range(len(observations)) if index not in guesses]
        if others:
            rest = [observations[i] for i in others], task, [rngs[i] for i in others], job
            guesses |= zip(others, super().reconstruct(*rest), strict=True)
        return [guesses[index] for index in range(len(observations))]

    def _steps(self, seen: Observation, task: Task, job: Job) -> SimulatedSteps | None:
        """Those that are taken again, if any."""
        single = seen.kind == "gradient" or seen.knowledge.local_steps in (None, 1)
        if single or not self.unroll or self.over_rounds:
            return None
        if self.adaptive and declared(seen).distortions - {"noise"}:
            return None
        return SimulatedSteps.of(seen, replay(seen, task, job.device))

    def _unrolled(
        self, seen: Observation, steps: SimulatedSteps, rng: torch.Generator, job: Job
    ) -> Reconstruction:
        search = self._unrolled_search(seen, steps, job)
        labels = known_labels(seen, steps.model.task, rng, job, adaptive=self.adaptive)
        start = _START * torch.randn(len(labels), search.prior.variances.numel(), generator=rng)
        return search(labels.to(job.device), start.to(job.device), rng)

    def _unrolled_search(
        self, seen: Observation, steps: SimulatedSteps, job: Job
    ) -> UnrolledSearch:
        prior = pixel_prior(seen, steps.model.task, job).to(torch.float32)
        update = seen.update(steps.model.parameters)
        observed = {name: value.float().to(job.device) for name, value in update.items()}
        classes = 0 if seen.knowledge.labels is not None else steps.model.task.spec.num_classes
        return UnrolledSearch(steps, observed, prior, job, self.evaluations, self.orders, classes)

    def objectives(
        self,
        observation: Observation,
        task: Task,
        batches: Sequence[Batch],
        rng: torch.Generator,
        job: Job,
    ) -> list[float] | None:
        """As of a single step; steps that are taken again, in the order of the batch.

        None over several epochs, whose later orders a batch does not tell.
        """
        steps = self._steps(observation, task, job)
        if steps is None:
            return super().objectives(observation, task, batches, rng, job)
        if len(steps.epochs) > 1:
            return None
        search = self._unrolled_search(observation, steps, job)
        evidence = search.evidence(torch.arange(steps.epochs[0].stop))
        return [
            unlikelihood(batch.to(job.device), search.prior, evidence, search.observed)[0]
            for batch in batches
        ]

    def search(self, victims: VictimGroup, task: Task) -> list[Reconstruction]:
        """A lane is one restart of one victim."""
        likely, prior = victims.loss.evidence, victims.prior.to(torch.float32)
        shape = victims.labels.shape[1], prior.variances.numel()
        return best_restarts(
            victims,
            lambda rng: _START * torch.randn(shape, generator=rng),
            _objective(likely, prior),
            prior.images,
            restarts=self.restarts,
            lanes=self.lanes,
            steps=self.steps,
            learning_rate=self.learning_rate,
        )


def _objective(likely: Evidence, prior: PixelPrior) -> Objective:
    """``-log`` of likelihood times prior, by which restarts are compared, too."""

    def objective(
        variables: Tensors, labels: Tensor, observed: Tensors
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        coefficients = variables["start"]
        images = prior.images(coefficients).clamp(0, 1)
        matching, surprise = likely(images, labels, observed)
        value = surprise + coefficients.square().sum() / 2
        return value, (images, matching, value)

    return objective
