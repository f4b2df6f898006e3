"""Lengths and usual sizes of updates, over all their tensors, and changes of each."""

from collections.abc import Callable

import torch
from torch import Tensor

from fedsim.types import Tensors


def cut(update: Tensors, norm: float) -> Tensors:
    """Scale the update down to ``norm`` if it is longer; integers neither count nor change."""
    scale = norm / squared_norm(update).clamp(min=norm**2).sqrt()
    return each_float(update, lambda value: value * scale.to(value.dtype))


def each_float(update: Tensors, change: Callable[[Tensor], Tensor]) -> Tensors:
    """The update, each of its floating-point tensors changed, in their order."""
    return {
        name: change(value) if value.is_floating_point() else value
        for name, value in update.items()
    }


def squared_norm(update: Tensors) -> Tensor:
    """Squared Euclidean norm over all floating-point tensors, as a float64 scalar."""
    floating = [value for value in update.values() if value.is_floating_point()]
    return torch.stack([value.to(torch.float64).square().sum() for value in floating]).sum()


def median_magnitude(update: Tensors) -> Tensor:
    """Median magnitude of the nonzero floating-point coordinates, a scalar without a slope."""
    floating = [value.detach().flatten() for value in update.values() if value.is_floating_point()]
    magnitude = torch.cat(floating).abs()
    # An update of zeros has no median, and any width gives tanh(0) = 0.
    return magnitude.where(magnitude > 0, torch.nan).nanmedian().nan_to_num(1.0)
