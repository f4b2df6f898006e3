"""What the gradients of a transformer are made of: products of factors, and small vectors."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class Products:
    """Gradients ``left^T right`` of weights of one shape ``(a, b)``.

    Attributes:
        names: of the parameters, one a layer.
        left: ``(layer, lane, row, a)``.
        right: ``(layer, lane, row, b)``.
    """

    names: tuple[str, ...]
    left: Tensor
    right: Tensor


@dataclass(frozen=True, slots=True)
class Vectors:
    """Gradients of small parameters, formed: biases, layer norms, rows of position tables.

    Attributes:
        names: of the parameters, one a layer.
        values: ``(layer, lane, coordinate)``; of a table, its first rows, flattened.
    """

    names: tuple[str, ...]
    values: Tensor
