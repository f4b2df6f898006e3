"""Images from the running batch statistics that a client sends back beside its update."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from attacks.base import Attack, Grouping, Job, Reconstruction
from attacks.learned.auxiliary_rows import with_mirrored
from attacks.learned.learner import labels_or_unknown
from attacks.learned.simulated_statistics import SimulatedStatistics
from fedsim.errors import CannotAttack
from fedsim.knowledge import Fact
from fedsim.seeds import generator
from fedsim.store.capture import Observation
from fedsim.tasks.base import Task
from fedsim.types import Batch, Tensors

_IMAGES = 32_000
"""Most images of simulated batches. In batches of eight, half of them cost .16 dB."""
_BYTES = 512 << 20
"""Most bytes of features that are kept."""
_CHOSEN = 800
"""Most updates by which scales are chosen; half of them cost .04 dB."""


@dataclass(frozen=True)
class Statistics(Attack):
    """Invert the running statistics of normalisation layers by kernel ridge regression.

    A client in train mode sends them back beside its update, and defenses of the update leave them
    as they are. With the broadcast taken out they are the mean and the variance of each channel,
    of an image of its own where the batch is one. That they give images away is known (Yin et al.
    2021; Hatamizadeh et al. 2022); here pixels are regressed on them, over forward passes of
    auxiliary images, mirrored ones too, through the broadcast model. Each layer's weight and the
    penalty are those of least leave-one-out error on auxiliary images.

    In a batch of several images, each is guessed by the mean image of the batch. Local steps are
    taken at the broadcast weights.

    Attributes:
        size: largest number of simulated updates.
    """

    title: ClassVar[str] = "Running statistics"
    modalities: ClassVar[frozenset[Literal["image", "text"]]] = frozenset({"image"})
    requires: ClassVar[frozenset[Fact]] = frozenset({"num_examples", "auxiliary"})
    grouping: ClassVar[Grouping] = "same_weights"

    size: Annotated[int, Field(ge=2)] = 4000

    def prepare(self, observation: Observation, task: Task, job: Job, seed: int) -> Tensors:
        """The regression, its leave-one-out error, and what kind of update it is for.

        Raises:
            CannotAttack: no statistics came back, or there are too few auxiliary rows.
        """
        client = SimulatedStatistics.of(observation, task, job.device)
        examples, rows = client.spread.examples, job.auxiliary()
        if len(rows) < 2 * examples:
            raise CannotAttack(
                f"{len(rows)} auxiliary rows are too few for two batches of {examples}",
                "Raise auxiliary.rows.",
            )
        drawn = generator(seed, "batches")
        single = rows.inputs[torch.randperm(len(rows), generator=drawn)]
        single = single[: min(len(rows) // examples, _CHOSEN) * examples].to(job.device)
        scales = learn_scales(client(single, seed), _means(single, examples), client.groups)
        job.report(0, scales.error, "")
        images = self._images(rows, examples, sum(client.groups), drawn).to(job.device)
        fitted = KernelRegression.fit(scales, client(images, seed), _means(images, examples))
        kind = torch.tensor(client.kind)
        return {**fitted.tensors, "error": torch.tensor(scales.error), "kind": kind}

    def _images(self, rows: Batch, examples: int, width: int, drawn: torch.Generator) -> Tensor:
        """Images of as many updates as are learned from, update after update.

        Single images are taken once, and batches are drawn anew in each pass over the rows.
        """
        owned = with_mirrored(rows).inputs
        updates = min(self.size, _IMAGES // examples, _BYTES // (4 * width))
        passed = len(owned) // examples
        passes = 1 if examples == 1 else -(-updates // passed)
        orders = [
            torch.randperm(len(owned), generator=drawn)[: passed * examples] for _ in range(passes)
        ]
        return owned[torch.cat(orders)[: max(2, updates) * examples]]

    def reconstruct(
        self,
        observations: Sequence[Observation],
        task: Task,
        rngs: Sequence[torch.Generator],
        job: Job,
    ) -> list[Reconstruction]:
        """The regression's value at each observation; the objective is the leave-one-out error.

        Raises:
            CannotAttack: an update is not of the kind that was learned from.
        """
        assert job.prepared is not None
        learned = {name: value.to(job.device) for name, value in job.prepared.items()}
        error, kind = float(learned.pop("error")), tuple(learned.pop("kind").tolist())
        fitted = KernelRegression(**learned)
        guesses = []
        for observation, rng in zip(observations, rngs, strict=True):
            client = SimulatedStatistics.of(observation, task, job.device)
            if client.kind != kind:
                raise CannotAttack(
                    f"an update of {client.kind} images, batches and statistics is not what was "
                    f"learned from: {kind}",
                    "Let all clients take as many steps on as many images.",
                )
            image = fitted(client.observed(observation)[None]).clamp(0, 1)
            inputs = image.view(1, *task.spec.input_shape).repeat(client.spread.examples, 1, 1, 1)
            labels = labels_or_unknown(observation, task, rng, job, adaptive=False)
            note = "each image is guessed by the batch's mean image" if len(labels) > 1 else ""
            guesses.append(Reconstruction(Batch(inputs.cpu(), labels), error, note=note))
        return guesses


def _means(images: Tensor, examples: int) -> Tensor:
    """The mean image of each update, ``(update, pixel)``."""
    means: Tensor = images.flatten(1).unflatten(0, (-1, examples)).mean(1)
    return means


_START = (0.1, 0.05)
"""Of the weights' sum and of the penalty."""
_STEPS, _RATE = 30, 0.1
"""Of Adam, on the logarithms of weights and penalty; four times the steps change .01 dB."""


@dataclass(frozen=True)
class KernelRegression:
    """A Gaussian kernel's ridge regression from the features of an update to values.

    Attributes:
        mean: of the features, ``(feature,)``.
        scale: factor of each feature, ``(feature,)``; squared distances add up to the exponent.
        points: features of the updates that it was fitted to, scaled, ``(update, feature)``.
        coefficients: of these updates, ``(update, value)``.
        centre: mean of the values, ``(value,)``.
    """

    mean: Tensor
    scale: Tensor
    points: Tensor
    coefficients: Tensor
    centre: Tensor

    @classmethod
    def fit(cls, scales: Scales, features: Tensor, values: Tensor) -> KernelRegression:
        """The regression of ``values (update, value)`` on ``features (update, feature)``."""
        points = (features - scales.mean) * scales.scale
        kernel = (-_distances(points, points)).exp().double()
        kernel.diagonal().add_(scales.penalty)
        centre = values.mean(0)
        factor = torch.linalg.cholesky(kernel)
        solved = torch.cholesky_solve((values - centre).double(), factor)
        return cls(scales.mean, scales.scale, points, solved.float(), centre)

    def __call__(self, features: Tensor) -> Tensor:
        """The values ``(update, value)`` at these features ``(update, feature)``."""
        points = (features - self.mean) * self.scale
        return (-_distances(points, self.points)).exp() @ self.coefficients + self.centre

    @property
    def tensors(self) -> Tensors:
        """What it was made of, by name."""
        return asdict(self)


@dataclass(frozen=True)
class Scales:
    """How far apart two updates are, and the penalty that goes with it.

    Attributes:
        mean: of the features, ``(feature,)``.
        scale: see ``KernelRegression``.
        penalty: added to the kernel's diagonal, which is 1.
        error: mean squared leave-one-out error of a value.
    """

    mean: Tensor
    scale: Tensor
    penalty: float
    error: float


def learn_scales(features: Tensor, values: Tensor, groups: Sequence[int]) -> Scales:
    """Those of least leave-one-out error, a weight for each group of features.

    With the kernel ``K_ij = exp(-sum_g w_g d_g(i, j))``, ``d_g`` the mean squared distance of the
    standardised features of group g, and ``G = (K + penalty)^-1``, the residual of update i when it
    is left out is ``(G values)_i / G_ii``, so that the error needs the values' Gram matrix alone.

    Args:
        features: of independent updates, ``(update, feature)``.
        values: ``(update, value)``.
        groups: number of features of each group, in order.
    """
    count, width = values.shape
    mean = features.mean(0)
    deviation = features.std(0)
    standard = torch.where(deviation > 0, (features - mean) / deviation, 0)
    parts = [_distances(p, p).double().flatten() / p.shape[1] for p in standard.split(groups, 1)]
    distances = torch.stack(parts)
    residuals = (values - values.mean(0)).double()
    gram = residuals @ residuals.T
    start = torch.tensor([_START[0] / len(groups)] * len(groups) + [_START[1]])
    logs = start.to(distances).log().requires_grad_()
    optimizer = torch.optim.Adam([logs], _RATE)
    best = (float("inf"), logs.detach())
    for _ in range(_STEPS):
        optimizer.zero_grad()
        weights = logs.exp()
        kernel = (-(weights[:-1] @ distances)).exp().view(count, count)
        inverse = torch.linalg.inv(kernel + weights[-1] * torch.eye(count).to(kernel))
        squares = ((inverse @ gram) * inverse).sum(1) / inverse.diagonal().square()
        error = squares.mean() / width
        best = min(best, (error.item(), logs.detach().clone()), key=lambda pair: pair[0])
        error.backward()
        optimizer.step()
    weights = best[1].exp().float()
    sizes = torch.tensor(groups, device=weights.device)
    scale = (weights[:-1] / sizes).sqrt().repeat_interleave(sizes)
    return Scales(
        mean,
        torch.where(deviation > 0, scale / deviation, 0),
        float(weights[-1]),
        best[0],
    )


def _distances(first: Tensor, second: Tensor) -> Tensor:
    """Squared distances ``(first, second)``."""
    squares = first.square().sum(1)[:, None] + second.square().sum(1)
    return (squares - 2 * first @ second.T).clamp_min(0)
