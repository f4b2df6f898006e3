"""What an update of a single example shows of its own distortion: noise, rounding, zeros, signs."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from attacks.observed.labels import Head
from fedsim.types import Tensors

_ZEROS = 0.01
"""Share of zeros from which an update was pruned."""
_GRID = 0.2
"""Deviation of rounding, by the smallest magnitude, from which it explains a zero."""
_FLOATS = 1e-6
"""Rounding errors of the client's own float32 sums, by the root mean square of a tensor."""
_LEAST = 64
"""Fewest coordinates of a tensor that can show a grid of values."""


@dataclass(frozen=True)
class Distortion:
    """The coordinates of an update, one tensor after another, and what is known of each.

    Attributes:
        values: received, ``(coordinate,)`` in float64.
        variance: of noise and rounding, ``(coordinate,)``.
        sizes: number of coordinates of each tensor.
        kept: bool ``(coordinate,)``, those that pruning left; all if nothing was pruned.
        signs: whether each tensor has but one magnitude.
    """

    values: Tensor
    variance: Tensor
    sizes: tuple[int, ...]
    kept: Tensor
    signs: bool

    @property
    def pruned(self) -> bool:
        """Whether coordinates were zeroed."""
        return not bool(self.kept.all())

    @property
    def bound(self) -> Tensor:
        """Smallest magnitude that was kept: where the largest were, none of the others is above."""
        return self.values[self.kept].abs().min()


def read_distortion(gradient: Tensors, received: Tensors, length: float, head: Head) -> Distortion:
    """Noise, rounding, zeros and signs, as the update itself shows them.

    The gradient of the last layer, weight beside bias, is ``(softmax - one_hot) [h, 1]^T`` for one
    example, hence of rank 1. Whatever the update carries beyond that is noise, whose variance is
    the energy beyond the first singular value by the degrees of freedom that are left. What the
    wire's format and a grid of values explain is subtracted, since it differs from one coordinate
    to the next.

    Args:
        gradient: observed, in float64.
        received: the same as it crossed the wire.
        length: what the update was divided by.
        head: the last layer, whose weight and bias were sent.
    """
    rounding = {k: _rounding(v, received[k], length) for k, v in gradient.items()}
    values, known = _flat(gradient), _flat(rounding)
    sizes = tuple(value.numel() for value in gradient.values())
    kept = torch.ones_like(values, dtype=torch.bool)
    # Zeros on a grid of values are rounded, not pruned.
    least = values[values != 0].abs().min()
    zeros = (values == 0) & (known.sqrt() < _GRID * least)
    if float(zeros.double().mean()) >= _ZEROS:
        kept = ~zeros
    if _are_signs(gradient):
        return Distortion(values, known, sizes, kept, signs=True)
    noise = 0.0 if not bool(kept.all()) else _beyond_rank_one(gradient, rounding, head)
    return Distortion(values, known + noise, sizes, kept, signs=False)


def _flat(tensors: Tensors) -> Tensor:
    return torch.cat([value.flatten() for value in tensors.values()])


def _rounding(gradient: Tensor, received: Tensor, length: float) -> Tensor:
    """Variance of what the wire's format, a grid and float32 sums take from each coordinate."""
    kind = torch.finfo(received.dtype)
    steps = (kind.eps * received.abs().double()).clamp(min=kind.tiny * kind.eps).to(gradient)
    found = (steps / length).square() / 12 + (_FLOATS**2) * gradient.square().mean()
    levels = gradient.unique()
    if len(levels) < 4 or gradient.numel() < _LEAST or 2 * len(levels) > gradient.numel():
        return found
    gap = (levels[1:] - levels[:-1]).min()
    off = (levels / gap - (levels / gap).round()).abs().max()
    # A sixth, since rounding may be random.
    return found.clamp(min=float(gap.square() / 6)) if float(off) < 0.01 else found


def _are_signs(gradient: Tensors) -> bool:
    """Whether the coordinates that are not zero have one magnitude in each tensor."""
    spreads = []
    for value in gradient.values():
        sizes = value[value != 0].abs()
        spreads.append(len(sizes) == 0 or float(sizes.max()) < 1.001 * float(sizes.min()))
    return all(spreads)


def _beyond_rank_one(gradient: Tensors, rounding: Tensors, head: Head) -> float:
    parts = [
        torch.cat([tensors[head.weight], tensors[str(head.bias)][:, None]], 1)
        for tensors in (gradient, rounding)
    ]
    rows, columns = parts[0].shape
    freedom = (rows - 1) * (columns - 1)
    rest = torch.linalg.svdvals(parts[0])[1:].square().sum() / freedom
    return float((rest - parts[1].mean()).clamp(min=0))
