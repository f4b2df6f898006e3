"""Clients with canaries in place of rows, or of what they have learned."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import nn

from fedsim.local.client import LocalClient
from fedsim.types import Batch, Tensors


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
