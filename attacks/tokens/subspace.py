"""The span of a linear layer's inputs, computed from the gradient of its weight."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

_DIRECTIONS = 32  # outside a span, by which an input is rejected
_SINGULAR_VALUE = 1e-7
"""Smallest singular value that counts towards a span, as a share of the largest; below lies float32
rounding at the client."""
_RANK_FALL = 30.0
"""A singular value this many times above the next ends a span that rounding blurs."""
_LOST_DIMENSIONS = 2
"""Dimensions that layer normalisation may take from inputs and gradients; a span with no more than
these to spare is full."""
EQUAL_RANK = 0.9
"""Least rank of a span that hides no token, as a share of another's of the same."""
_MISSING_DIRECTION = 0.5
"""Sine from which a direction is absent from a span."""


@dataclass(frozen=True)
class Subspace:
    """The span of the inputs ``x_t`` of a linear layer, as ``dL/dW = sum_t x_t (dL/dy_t)^T``.

    Attributes:
        basis: orthonormal columns, float64 ``(width, rank)``.
        most: the largest rank that the gradient could have.
        outside: orthonormal columns of all that the span leaves of the width; None if not known.
    """

    basis: Tensor
    most: int
    outside: Tensor | None = None

    @property
    def width(self) -> int:
        """Dimensions of one input."""
        return self.basis.shape[0]

    @property
    def rank(self) -> int:
        """Dimensions of the span: at most one for each token of the batch."""
        return self.basis.shape[1]

    @property
    def full(self) -> bool:
        """Whether tokens or noise fill the whole space, so that every input lies in the span."""
        return self.rank >= self.most - _LOST_DIMENSIONS

    def widened(self, inputs: Tensor) -> Subspace:
        """The span enlarged by further inputs ``(input, width)``."""
        both = torch.cat([self.basis, inputs.to(self.basis).T], 1)
        return Subspace(torch.linalg.qr(both).Q, self.most)

    def filled(self, inputs: Tensor) -> bool:
        """Whether the inputs ``(input, width)`` span the whole subspace."""
        basis = torch.linalg.qr(inputs.to(self.basis).T).Q
        missing = self.basis - basis @ (basis.T @ self.basis)
        return bool(torch.linalg.svdvals(missing)[0] < _MISSING_DIRECTION)

    def distance(self, inputs: Tensor) -> Tensor:
        """Sine of the angle between each input ``(..., width)`` and the span, in [0, 1]."""
        if self.outside is not None and self.outside.shape[1] < 2 * self.rank:
            return _sine(inputs @ self.outside.to(inputs), inputs)
        basis = self.basis.to(inputs)
        return _sine(inputs - inputs @ basis @ basis.T, inputs)

    def least_distance(self, inputs: Tensor) -> Tensor:
        """A lower bound of ``distance``, from a few directions outside the span."""
        return _sine(inputs @ self._few_outside.to(inputs), inputs)

    def rough_distance(self, inputs: Tensor) -> Tensor:
        """``distance`` at half the cost; accurate to 0.001 in float32, enough for a ranking."""
        inside = (inputs @ self.basis.to(inputs)).square().sum(-1)
        return (1 - inside / inputs.square().sum(-1).clamp(min=1e-30)).clamp(min=0).sqrt()

    @cached_property
    def _few_outside(self) -> Tensor:
        """Random orthonormal columns outside the span."""
        count = min(_DIRECTIONS, self.width - self.rank)
        rng = torch.Generator().manual_seed(0)
        drawn = torch.randn(self.width, count, generator=rng, dtype=torch.float64)
        drawn = drawn.to(self.basis)
        outside: Tensor = torch.linalg.qr(drawn - self.basis @ (self.basis.T @ drawn)).Q
        return outside


def span(gradient: Tensor, noise: float = 0.0, *, blurred: bool = True) -> Subspace:
    """The column space of ``gradient``, without the directions that rounding adds.

    Args:
        gradient: float64 ``(width, outputs)``.
        noise: standard deviation of an entry's error; 0 if unknown.
        blurred: cut a seemingly full span at the largest ratio of singular values, if large enough.
    """
    rows, columns = gradient.shape
    # A Gram matrix would lose half of the digits. QR keeps them and leaves a small factor.
    square = torch.linalg.qr(gradient.T, mode="r").R.T if columns > rows else gradient
    left, values, _ = torch.linalg.svd(square, full_matrices=False)
    floor = max(_SINGULAR_VALUE * float(values[0]), noise * (rows**0.5 + columns**0.5), 1e-300)
    rank = int((values > floor).sum())
    if blurred and rank == len(values):
        rank = _fall(values)
    outside = left[:, rank:] if left.shape[1] == rows else None
    return Subspace(left[:, :rank], len(values), outside)


def _sine(outside: Tensor, inputs: Tensor) -> Tensor:
    """The norm of what is outside a span, as a share of that of the inputs ``(..., width)``."""
    sine: Tensor = outside.norm(dim=-1) / inputs.norm(dim=-1).clamp(min=1e-30)
    return sine.clamp(max=1)


def _fall(values: Tensor) -> int:
    """Number of singular values before the largest ratio; all if no ratio is large enough."""
    falls = values[:-1] / values[1:].clamp(min=1e-300)
    if len(falls) == 0 or float(falls.max()) < _RANK_FALL:
        return len(values)
    return int(falls.argmax()) + 1


def rounding(wire: Tensor) -> float:
    """Rms error of an entry that its dtype rounded: uniform over a unit in the last place."""
    return 12**-0.5 * torch.finfo(wire.dtype).eps * float(wire.double().square().mean().sqrt())
