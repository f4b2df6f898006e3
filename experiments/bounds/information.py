"""What follows from a bound on the information in a reply, whatever the attack.

Let X be a private example, Y what the server sees, and I a bound on their mutual information in
nats, all else given: weights, the other examples, the class. A guess made from Y has a score in
[0, 1], m on average. Made from the Y of another draw of X, its mean would be at most b, that of the
best blind guess. By the data processing inequality

    kl(m || b) = m log(m / b) + (1 - m) log((1 - m) / (1 - b))  <=  I.

For an event, such as an exact return, this is Fano's inequality. Nothing is assumed of the attack.
"""

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from scipy.stats import t
from torch import Tensor

CERTAIN = 0.995
"""A bound on a share that rounds to 1 says nothing."""
_SLOPES = tuple(10 ** (step / 3) for step in range(12))
"""Prices of a unit of squared error, in nats. The bound is the best of the lines with these slopes;
twice as many make it less than .1 dB tighter."""
_STARTS = 8
"""Images from which the densest point is searched, beside the mean; 64 find no denser one."""
_ROUNDS = 200
_STILL = 1e-5
"""Change of a weight below which the point stands still; the density there is flat."""


def most(blind: float, nats: float) -> float:
    """Largest mean of a score in [0, 1], where no blind guess has a mean above ``blind``."""
    low, high = min(max(blind, 0.0), 1.0), 1.0
    if low <= 0 or low >= 1 or _relative_entropy(high, low) <= nats:
        return low if low <= 0 else high
    floor = low
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _relative_entropy(middle, floor) <= nats else (low, middle)
    return high


def lead(nats: float) -> float:
    """Largest lead of such a mean over the best blind guess, whatever that is (Pinsker 1964)."""
    return min(1.0, math.sqrt(nats / 2))


def _relative_entropy(mean: float, blind: float) -> float:
    parts = ((mean, blind), (1 - mean, 1 - blind))
    return sum(p * math.log(p / q) for p, q in parts if p > 0)


def decibels(error: float) -> float:
    """PSNR of a mean squared error."""
    return -10 * math.log10(error) if error > 0 else math.inf


@dataclass(frozen=True, eq=False)
class Listed:
    """Least squared error of images that are drawn like those of a list, class by class.

    Tell the attacker a list of images, one of them the truth: that can only help. With d the mean
    squared error per pixel, any guess then obeys, for every slope s > 0 (Csiszar 1974),

        E d  >=  (-log max_y mean_i exp(-s d(x_i, y)) - I) / s,

    where the maximum over guesses y is that of a density of Gaussian bumps, found by mean shift.
    Nothing is assumed but that private images are drawn as those of the list are. Where I exceeds
    the log of a class's images, the list says nothing.

    Attributes:
        images: float ``(image, pixel)``.
        classes: int64 ``(image,)``; the class is given to the attacker.
    """

    images: Tensor
    classes: Tensor

    @cached_property
    def _lines(self) -> list[tuple[float, float]]:
        """Slope, and what the line has at no information."""
        groups = [self.images[self.classes == label].double() for label in self.classes.unique()]
        return [
            (
                slope,
                sum(len(group) * _emptiness(group, slope) for group in groups) / len(self.images),
            )
            for slope in _SLOPES
        ]

    def error(self, nats: float) -> float:
        """The bound at so much information."""
        return max(0.0, max((level - nats) / slope for slope, level in self._lines))


def _emptiness(images: Tensor, slope: float) -> float:
    """Minus the log of the largest mean of ``exp(-slope d(x_i, y))`` over all y."""
    inner = images @ images.T / images.shape[1]
    squares = inner.diagonal()
    apart = squares[:, None] + squares - 2 * inner
    dense = torch.exp(-slope * apart).sum(1).argsort(descending=True)[:_STARTS]
    weights = torch.cat(
        [inner.new_full((1, len(inner)), 1 / len(inner)), torch.eye(len(inner))[dense].double()]
    )
    for _ in range(_ROUNDS):  # the densest point is a mean of the images
        products = weights @ inner
        distance = squares - 2 * products + (weights * products).sum(1, keepdim=True)
        moved = torch.softmax(-slope * distance, 1)
        done = bool((moved - weights).abs().max() < _STILL)
        weights = moved
        if done:
            break
    level = torch.logsumexp(-slope * distance, 1).max() - math.log(len(inner))
    return -float(level)


def gaussian_error(power: Tensor, nats: float) -> float:
    """Least squared error per pixel of Gaussian images, by reverse water-filling (Shannon 1959).

    Args:
        power: variances of the independent parts of an image.
        nats: of information, spent on the parts with the largest variance.
    """
    low, high = 1e-12, float(power.max())
    for _ in range(100):
        level = math.sqrt(low * high)
        spent = 0.5 * float((power / level).log().clamp(min=0).sum())
        low, high = (level, high) if spent > nats else (low, level)
    return float(power.clamp(max=high).mean())


def noise_information(fit: Tensor, held: Tensor, std: float) -> Tensor:
    """Nats of each of ``held``, whose mean bounds the information in noisy gradients.

    For any distribution q, I(X; Y) <= E KL(N(g(X), std^2 I) || q). We take the Gaussian q whose
    covariance is std^2 I + S, with S of the gradients ``fit``, for which the bound on their
    population is 1/2 log det(I + S / std^2); other gradients measure what it is on average.

    Args:
        fit: ``(row, value)``, less the mean of their class.
        held: ``(row, value)``, of other rows, less the same means.
        std: of the noise on each value.
    """
    inner = fit.double() @ fit.double().T / len(fit)
    values, vectors = torch.linalg.eigh(inner)
    large = values > 1e-9 * values.max().clamp(min=1e-30)
    values, vectors = values[large], vectors[:, large]
    ratio = values / std**2
    constant = 0.5 * float((1 / (1 + ratio) - 1 + ratio.log1p()).sum())
    inside = (held.double() @ fit.double().T / math.sqrt(len(fit))) @ vectors / values.sqrt()
    explained = (inside.square() * (ratio / (1 + ratio))).sum(1)
    nats: Tensor = constant + 0.5 * (held.double().square().sum(1) - explained) / std**2
    return nats


def upper_mean(values: Tensor) -> float:
    """Upper end of the 95 % t interval of a mean, of two values or more."""
    count = len(values)
    spread = float(values.double().std()) / math.sqrt(count)
    return float(values.double().mean() + t.isf(0.025, count - 1) * spread)
