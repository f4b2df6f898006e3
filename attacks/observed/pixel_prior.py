"""What images look like before any update is seen: a Gaussian over their cosine coefficients."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

_PSEUDO_ROWS = 20
"""Rows that the general law of natural images counts for beside the auxiliary rows."""
_VARIANCE = 0.06
"""Mean variance of a pixel in [0, 1] around mid-grey, where no rows are granted."""
_CHROMA = 0.05
"""Variance of the differences of colours by that of their mean, where no rows are granted."""


@dataclass(frozen=True)
class PixelPrior:
    """A mean image and independent coefficients in the basis of colours times cosines.

    Principal components of natural images are nearly cosines in each of the principal colours, so
    that the variances of these coefficients say what a full covariance says, and few rows suffice
    to estimate them. Without rows, and as far as these are few, variances follow the law of natural
    images, ``1 / frequency^2``.

    Attributes:
        mean: ``(channel, height, width)`` in float64; mid-grey without rows.
        colours: orthonormal rows, ``(colour, channel)``.
        variances: of the coefficients, ``(colour, height, width)``.
    """

    mean: Tensor
    colours: Tensor
    variances: Tensor

    @classmethod
    def of(cls, rows: Tensor | None, shape: tuple[int, ...]) -> PixelPrior:
        """The prior of an attacker who owns the images ``rows (row, *shape)``, or None."""
        channels, height, width = shape
        squares = [torch.arange(size, dtype=torch.float64).square() for size in (height, width)]
        law = 1 / (squares[0][:, None] + squares[1] + 0.5)
        shares = torch.tensor([1.0] + [_CHROMA] * (channels - 1), dtype=torch.float64)
        law = shares[:, None, None] * law
        law = law * (_VARIANCE * math.prod(shape) / law.sum())
        start = torch.cat([torch.ones(channels, 1), torch.eye(channels)[:, 1:]], 1).double()
        colours = torch.linalg.qr(start)[0].T
        if rows is None:
            return cls(torch.full(shape, 0.5, dtype=torch.float64), colours, law)
        images = rows.detach().cpu().double()
        mean = images.mean(0)
        rest = images - mean
        if len(images) > _PSEUDO_ROWS:
            spread = torch.einsum("nchw,ndhw->cd", rest, rest)
            colours = torch.linalg.eigh(spread)[1].T.flip(0)
        seen = cosines(torch.einsum("ec,nchw->nehw", colours, rest)).square().sum(0)
        return cls(mean, colours, (seen + _PSEUDO_ROWS * law) / (len(images) + _PSEUDO_ROWS))

    def to(self, target: torch.device | torch.dtype) -> PixelPrior:
        """The same on another device, or in another precision."""
        return PixelPrior(self.mean.to(target), self.colours.to(target), self.variances.to(target))

    @property
    def error(self) -> float:
        """Expected mean squared error of the mean image."""
        return float(self.variances.mean())

    def strongest(self, size: int) -> Tensor:
        """Numbers of the coefficients with the largest variances, ``(at most size,)``."""
        return self.variances.flatten().argsort(descending=True, stable=True)[:size]

    def basis(self, numbers: Tensor) -> Tensor:
        """Images of one standard deviation of each of these coefficients."""
        _, height, width = self.variances.shape
        colour, place = numbers // (height * width), numbers % (height * width)
        scale = self.variances.flatten()[numbers].sqrt()
        return torch.einsum(
            "k,kc,kh,kw->kchw",
            scale,
            self.colours[colour],
            _matrix(height, self.mean)[place // width],
            _matrix(width, self.mean)[place % width],
        )

    def draw(self, count: int, numbers: Tensor, rng: torch.Generator) -> Tensor:
        """Random deviations from the mean that have none of these coefficients."""
        scale = self.variances.sqrt().flatten().index_fill(0, numbers, 0).view_as(self.variances)
        drawn = torch.randn(count, *scale.shape, generator=rng, dtype=torch.float64).to(scale)
        return torch.einsum("ec,nehw->nchw", self.colours, cosines(drawn * scale, inverse=True))

    def smoothed(self, images: Tensor, noise: float) -> Tensor:
        """The likeliest images where each coefficient of these has an error of variance ``noise``.

        That is Wiener's filter: rare coefficients are doubted more than common ones.
        """
        gain = self.variances / (self.variances + noise)
        return self.images(self.coefficients(images) * gain.flatten())

    def coefficients(self, images: Tensor) -> Tensor:
        """In standard deviations, ``(image, coefficient)``: independent, of variance 1."""
        rest = torch.einsum("ec,nchw->nehw", self.colours, images.to(self.mean) - self.mean)
        return (cosines(rest) / self.variances.sqrt()).flatten(1)

    def images(self, coefficients: Tensor) -> Tensor:
        """The inverse of ``coefficients``, ``(image, channel, height, width)``."""
        scaled = coefficients.unflatten(1, self.variances.shape) * self.variances.sqrt()
        rest = cosines(scaled, inverse=True)
        return self.mean + torch.einsum("ec,nehw->nchw", self.colours, rest)

    def rarity(self, images: Tensor) -> Tensor:
        """``-log p(images)`` up to a constant, a scalar."""
        return self.coefficients(images).square().sum() / 2


def cosines(images: Tensor, *, inverse: bool = False) -> Tensor:
    """The orthonormal discrete cosine transform of the last two dimensions, or its inverse."""
    rows, columns = (_matrix(size, images) for size in images.shape[-2:])
    if inverse:
        rows, columns = rows.T, columns.T
    return rows @ images @ columns.T


def _matrix(size: int, like: Tensor) -> Tensor:
    places = torch.arange(size, dtype=torch.float64)
    basis = (places[:, None] * (places + 0.5) * (math.pi / size)).cos() * math.sqrt(2 / size)
    basis[0] /= math.sqrt(2)
    return basis.to(like)
