"""Kernel ridge regression whose scales are those of least leave-one-out error."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from fedsim.types import Tensors

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
