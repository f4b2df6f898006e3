"""The best estimate of one image from a distorted update: its class, its scale, its detail."""

from dataclasses import dataclass

import torch
from torch import Tensor

from attacks.base import Job
from attacks.observed.distortion import Distortion, read_distortion
from attacks.observed.labels import Head
from attacks.observed.pixel_prior import PixelPrior
from attacks.observed.replay import replay
from attacks.observed.single_target import SingleTarget
from attacks.solved.posterior import FITTED_SCALE, Estimator, Posterior
from fedsim.store.capture import Observation
from fedsim.tasks.base import Task
from fedsim.types import Tensors

_POSTERIOR_COARSE = 384
"""Number of coefficients searched for first."""
_POSTERIOR_FINE = 4
"""Factor on that number where more detail can be seen."""
_LEFT_OUT = 0.6
"""Variance of the coefficients left out, as a share of the expected error, below which more detail
is not searched for."""
_INFORMED = 0.95
"""Share of the prior's error below which the expected error of an estimate counts as knowledge."""
_LABEL_SIGMAS = 4.0
"""Standard deviations between two classes' slopes below which both are tried."""
_CLIPPED_SCALE = 0.7
"""Largest first value of a fitted scale."""


@dataclass(frozen=True, slots=True)
class Received:
    """A gradient as it was received, and what its last layer tells.

    Attributes:
        gradient: in float64.
        length: what the update was divided by.
        head: the last linear layer.
        single: the target, and the factor to divide by.
    """

    gradient: Tensors
    length: float
    head: Head
    single: SingleTarget


@dataclass(frozen=True)
class ImageEstimate:
    """The estimate beside what was known before.

    Attributes:
        posterior: the estimate.
        prior: what is known without the update.
        estimator: scores other images by the same evidence.
        received: what it is from.
        doubt: largest expected error under a class and a scale that the update does not rule out.
            An update that was clipped tells less than one of full length, and where noise hides
            its length, a fit of the full one moves the image until its gradient is short enough.
    """

    posterior: Posterior
    prior: PixelPrior
    estimator: Estimator
    received: Received
    doubt: float

    @property
    def informed(self) -> bool:
        """Whether the update is expected to take a noticeable part of the prior's error."""
        return max(self.posterior.error, self.doubt) < _INFORMED * self.prior.error


def estimate(
    observation: Observation,
    task: Task,
    received: Received,
    rng: torch.Generator,
    job: Job,
) -> ImageEstimate:
    """The likeliest image under the auxiliary rows' Gaussian, or natural images' in general.

    Few coefficients are searched first, under each likely class and scale; more follow as long as
    what is left out matters beside what the update does not tell.
    """
    rows = job.auxiliary().inputs if observation.knowledge.auxiliary else None
    prior = PixelPrior.of(rows, task.spec.input_shape).to(job.device)
    exact = replay(observation, task, job.device, torch.float64)
    head, factor = received.head, received.single.trusted
    gradient = {name: received.gradient[name] / factor for name in exact.parameters}
    update = read_distortion(gradient, observation.received, factor * received.length, head)
    quick = replay(observation, task, job.device)
    estimator = Estimator(exact, quick, update, prior, job)
    targets = _targets(observation, task, estimator, gradient, received)
    size = _POSTERIOR_COARSE
    tried = [
        estimator.search(target, scale, size, None, rng)
        for target in targets
        for scale in _scales(estimator, target)
    ]
    likeliest = min(tried, key=lambda posterior: posterior.objective)
    possible = likeliest.objective + FITTED_SCALE
    doubt = max(posterior.error for posterior in tried if posterior.objective <= possible)
    while size_of(likeliest) < prior.variances.numel():
        unsearched = float(
            prior.variances.flatten()[prior.strongest(10**9)[size_of(likeliest) :]].sum()
        )
        missing = unsearched / prior.variances.numel()
        if missing < _LEFT_OUT * likeliest.error or job.expired:
            break
        size = _POSTERIOR_FINE * size_of(likeliest)
        likeliest = estimator.search(likeliest.target, likeliest.scale, size, likeliest, rng)
    return ImageEstimate(likeliest, prior, estimator, received, doubt)


def size_of(posterior: Posterior) -> int:
    """Number of coefficients that were searched for."""
    return len(posterior.coefficients)


def _targets(
    observation: Observation,
    task: Task,
    estimator: Estimator,
    gradient: Tensors,
    received: Received,
) -> list[Tensor]:
    """The granted class, else the likeliest one, and the second where noise leaves it open.

    With the features ``h`` of the prior's mean, ``(W_j h + b_j) / (|h|^2 + 1)`` estimates the slope
    at the logit of class ``j`` with far less noise than its bias alone; the class has the lowest.
    Targets that are no classes, and the two of a single output, are those of the last layer.
    """
    head, single = received.head, received.single
    if observation.knowledge.labels is not None:
        return [torch.tensor(observation.knowledge.labels)]
    if task.spec.target != "class" or len(gradient[str(head.bias)]) < 2:
        return [single.target]
    mean = estimator.gradient(estimator.prior.mean, torch.tensor([0]))
    parts = dict(zip(gradient, mean.split(estimator.update.sizes), strict=True))
    bias = parts[str(head.bias)]
    weight, at = parts[head.weight].view(len(bias), -1), int(bias.abs().argmax())
    features = weight[at] / bias[at]
    length = 1 + features.square().sum()
    slopes = (gradient[head.weight] @ features + gradient[str(head.bias)]) / length
    deviation = (estimator.update.variance.mean() / length).sqrt()
    if estimator.update.signs or estimator.update.pruned:
        deviation = slopes.std()
    order = slopes.argsort()
    close = slopes[order[1]] - slopes[order[0]] < _LABEL_SIGMAS * deviation
    return [label[None] for label in order[: 1 + int(close)].cpu()]


def _scales(estimator: Estimator, target: Tensor) -> list[float]:
    """1, and what the update's length says, where it was clipped or multiplied."""
    update: Distortion = estimator.update
    if update.signs:
        return [1.0]
    energy = float((update.values.square() - update.variance).sum().clamp(min=0))
    usual = float(estimator.gradient(estimator.prior.mean, target).square().sum())
    scale = (energy / usual) ** 0.5
    if scale * _CLIPPED_SCALE > 1:
        return [1.0, scale]
    return [1.0, min(max(scale, 0.01), _CLIPPED_SCALE)]
