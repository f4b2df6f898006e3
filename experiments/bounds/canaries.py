"""Canaries: made-up gradients in random directions that an audit plants among a client's own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from math import prod

import torch
from torch import Tensor, nn

from fedsim.local.client import LocalClient
from fedsim.types import Batch, Tensors


@dataclass(frozen=True)
class Canaries:
    """Orthogonal unit vectors in random directions (Andrew et al. 2024, "one-shot").

    Each takes the coordinates of one block of a random partition, with random signs. Against
    isotropic noise these are as good as any other directions. Being exactly orthogonal, one canary
    does not disturb the score of another, and all of them together need the memory of one gradient.

    Attributes:
        shapes: of the tensors that the client sends, in their order.
        block: number of the canary that a coordinate belongs to, ``(coordinate,)``.
        sign: 1 or -1, ``(coordinate,)``.
    """

    shapes: dict[str, torch.Size]
    block: Tensor
    sign: Tensor

    @classmethod
    def draw(cls, shapes: dict[str, torch.Size], count: int, rng: torch.Generator) -> Canaries:
        """Draw ``count`` canaries.

        Raises:
            ValueError: there are fewer coordinates than canaries.
        """
        size = sum(prod(shape) for shape in shapes.values())
        if count > size:
            raise ValueError(f"{count} canaries do not fit into {size} coordinates")
        block = torch.randperm(size, generator=rng) % count
        sign = torch.randint(0, 2, (size,), generator=rng) * 2.0 - 1
        return cls(shapes, block, sign)

    @cached_property
    def _sizes(self) -> Tensor:
        return torch.bincount(self.block)

    @cached_property
    def _places(self) -> tuple[Tensor, ...]:
        return tuple(torch.split(self.block.argsort(), self._sizes.tolist()))

    def gradient(self, canary: int, norm: float) -> Tensors:
        """One canary of this norm, as a gradient."""
        flat, places = torch.zeros(len(self.block)), self._places[canary]
        flat[places] = self.sign[places] * norm / len(places) ** 0.5
        parts = flat.split([prod(shape) for shape in self.shapes.values()])
        return {
            name: part.reshape(shape)
            for (name, shape), part in zip(self.shapes.items(), parts, strict=True)
        }

    def products(self, update: Tensors) -> Tensor:
        """Inner product of each canary with an update, float64 ``(canary,)``."""
        flat = torch.cat([update[name].flatten() for name in self.shapes]).double()
        totals = torch.zeros(len(self._sizes), dtype=torch.float64)
        totals.index_add_(0, self.block, flat * self.sign)
        return totals / self._sizes.sqrt()


@dataclass(frozen=True)
class Planted(LocalClient):
    """A client in whose batch canaries stand as further examples, for ``dp_sgd``."""

    canaries: tuple[Tensors, ...]

    def single_gradients(self, model: nn.Module, batch: Batch) -> Iterator[tuple[Tensors, float]]:
        """Gradients of the examples, then the canaries."""
        yield from super().single_gradients(model, batch)
        yield from ((canary, 0.0) for canary in self.canaries)


@dataclass(frozen=True)
class Replaced(LocalClient):
    """A client that sends a canary instead of what it has learned, for ``dp_client``."""

    canary: Tensors

    def gradient(
        self, model: nn.Module, batch: Batch, rng: torch.Generator
    ) -> tuple[Tensors, Tensors, float]:
        """The canary, twice, and no loss."""
        del model, batch, rng
        return self.canary, self.canary, 0.0
