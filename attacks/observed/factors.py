"""The parts of a transformer's gradient: products of factors and small vectors."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class Products:
    """Gradients ``left^T right`` of weights of one shape ``(a, b)``.

    Attributes:
        names: one parameter name for each layer.
        left: ``(layer, lane, row, a)``.
        right: ``(layer, lane, row, b)``.
    """

    names: tuple[str, ...]
    left: Tensor
    right: Tensor


@dataclass(frozen=True, slots=True)
class Vectors:
    """Explicit gradients of small parameters: biases, layer norms, rows of position tables.

    Attributes:
        names: one parameter name for each layer.
        values: ``(layer, lane, coordinate)``; for a table its first rows, flattened.
    """

    names: tuple[str, ...]
    values: Tensor
