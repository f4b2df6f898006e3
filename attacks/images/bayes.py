"""The Bayes optimal adversary's search: the likeliest images under a prior of images."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from attacks.base import Attack, Reconstruction
from attacks.images.descent import ImageObjective, best_restarts
from attacks.images.image_matching import ImageMatching
from attacks.images.victims import Evidence, Victims
from attacks.observed.pixel_prior import PixelPrior
from attacks.observed.search import restart_generators
from fedsim.tasks.base import Task
from fedsim.types import Tensors

_START = 0.1
"""Deviation of the first coefficients, so that the images of a batch start apart."""


@dataclass(frozen=True)
class Bayes(ImageMatching):
    """Maximise the posterior probability of a batch of images, given the update.

    Balunovic et al. 2022, "Bayesian Framework for Gradient Leakage", approximate the Bayes optimal
    adversary by the maximum of ``log p(update | images) + log p(images)``, and read other attacks
    as choices of the two. Here the likelihood is the defense's if ``adaptive``, else that of
    Gaussian noise of unknown variance, see ``attacks.images.likelihoods``; the prior is the
    Gaussian of the attacker's auxiliary images, or of natural images in general, see
    ``attacks.observed.pixel_prior``. Adam searches the prior's coefficients in standard deviations,
    from near the mean image; its rate falls to a tenth at 3/8, 5/8 and 7/8 of the steps. There is
    no weight to choose: under noise the prior tells more, without a defense the update does.

    ``closed_form`` makes the same estimate of one image by Gauss-Newton, of networks that it can
    solve layer by layer; this search needs a gradient alone, and takes batches. Where a gradient is
    far from linear in the image, as that of ResNet20, it ends in other images.

    Attributes:
        steps: of Adam.
        learning_rate: of Adam at the start, in standard deviations of a coefficient.
    """

    title: ClassVar[str] = "Bayes"

    steps: Annotated[int, Field(ge=1)] = 1000
    learning_rate: Annotated[float, Field(gt=0)] = 0.1

    def abridged(self) -> tuple[Attack, float]:
        """All of it; every step costs the same."""
        return self, self.steps

    def search(self, victims: Victims, task: Task) -> list[Reconstruction]:
        """A lane is one restart of one victim."""
        likely, prior = victims.evidence, victims.prior.to(torch.float32)
        assert likely is not None
        size = prior.variances.numel()
        starts = [
            (victim, _START * torch.randn(victims.labels.shape[1], size, generator=generator))
            for victim, rng in enumerate(victims.rngs)
            for generator in restart_generators(rng, self.restarts)
        ]
        return best_restarts(
            victims,
            starts,
            _objective(likely, prior),
            prior.images,
            restarts=self.restarts,
            lanes=self.lanes,
            steps=self.steps,
            learning_rate=self.learning_rate,
        )


def _objective(likely: Evidence, prior: PixelPrior) -> ImageObjective:
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
