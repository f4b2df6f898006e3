"""Noise made white that is not."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from fedsim.types import Tensors


@dataclass(frozen=True)
class Roots:
    """Makes noise of a separable covariance white.

    Attributes:
        left: of the rows of a matrix ``(row, row)``.
        right: of its columns.
        noise: standard deviation of the entries of all tensors that have neither.
    """

    left: Tensors
    right: Tensors
    noise: float

    def __call__(self, name: str, value: Tensor) -> Tensor:
        """A tensor of an update or of a gradient."""
        if name not in self.right:
            return value / self.noise
        value = value @ self.right[name]
        return self.left[name] @ value if name in self.left else value

    def factors(self, name: str, left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
        """The same of a product ``left^T right``."""
        if name not in self.left:
            return left, right / self.noise
        return left @ self.left[name], right @ self.right[name]
