"""An update in which no direction outweighs another, and what sentences leave of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedsim.types import Tensors

_RIDGE = 1e-6  # of inner products of gradients, which may be alike


@dataclass(frozen=True)
class Whitening:
    """Multiplies each matrix by the regularised inverse of an update's second moments.

    The directions that all sentences share would else outweigh what tells them apart. It makes an
    update ``U`` its transposed pseudo-inverse, in which tokens that are independent do not speak
    for one another, however loud they are. The inner product with a gradient is then the matched
    filter for it in noise of the update's own covariance.

    Attributes:
        inverses: of the moments over the shorter side of each matrix, in which ``U`` keeps its
            norm of one an entry.
    """

    inverses: Tensors

    @classmethod
    def of(cls, update: Tensors, ridge: float) -> Whitening:
        """Of the matrices of an update.

        Args:
            update: of any tensors; matrices without an entry become zero, and so do vectors beside
                matrices. Without any matrix they keep their directions.
            ridge: mean squares of the singular values that are added to each square.
        """
        alive = {name: v for name, v in update.items() if v.dim() == 2 and v.any()}
        if not alive:
            vectors = {name: v.norm() / v.numel() ** 0.5 for name, v in update.items() if v.any()}
            return cls({name: 1 / size.view(1, 1) for name, size in vectors.items()})
        return cls({name: _inverse(value, ridge) for name, value in alive.items()})

    def __or__(self, other: Whitening) -> Whitening:
        """The other one where it knows a tensor."""
        return Whitening(self.inverses | other.inverses)

    def __call__(self, gradient: Tensors) -> Tensors:
        """The same tensors evened, and zero where the update was."""
        return {name: self._whitened(name, value) for name, value in gradient.items()}

    def without(self, evened: Tensors, gradients: Sequence[Tensors]) -> Tensors:
        """What is left of an evened update without the shares of gradients that explain most."""
        residual = dict(evened)
        for name in self.inverses if gradients else ():
            lines = torch.stack([gradient[name] for gradient in gradients]).flatten(1).double()
            parts = torch.stack([self._whitened(name, gradient[name]) for gradient in gradients])
            table = lines @ parts.flatten(1).double().T
            table.diagonal().mul_(1 + _RIDGE).add_(1e-30)
            shares = torch.linalg.solve(table, lines @ evened[name].flatten().double())
            residual[name] = evened[name] - torch.tensordot(shares.to(parts), parts, 1)
        return residual

    def _whitened(self, name: str, value: Tensor) -> Tensor:
        inverse = self.inverses.get(name)
        if inverse is None:
            return torch.zeros_like(value)
        if inverse.numel() == 1:
            return inverse.view(()) * value
        return inverse @ value if len(inverse) == len(value) else value @ inverse


def _inverse(value: Tensor, ridge: float) -> Tensor:
    wide = value.double() if value.shape[0] <= value.shape[1] else value.double().T
    moments = wide @ wide.T
    mean = moments.diagonal().mean()
    moments.diagonal().add_(ridge * mean)
    inverse = torch.linalg.inv(moments)
    scaled: Tensor = inverse * (value.numel() ** 0.5 / (inverse @ wide).norm())
    return scaled.to(value)
