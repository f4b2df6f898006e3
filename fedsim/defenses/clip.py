"""Clipping: an update that is too long is scaled down; nothing is hidden but its length."""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from fedsim.defenses.base import Defense, Distortion
from fedsim.types import Tensors


@dataclass(frozen=True, kw_only=True)
class Clip(Defense):
    """Scales the whole update to a norm where it is longer (as in McMahan et al. 2018), no noise.

    No protection by itself: all directions, ratios, signs, ranks and spans survive, so that
    attacks by the cosine or by the span lose nothing. Two things have to know of it: a squared
    distance, by the surrogate, which is the clipping itself; and what counts the labels of a batch,
    for which an adaptive attack on images estimates the scale. An oblivious one counts what the
    model expects and not what the batch holds, unless labels are granted. Clipping of single
    examples without noise is ``dp_sgd`` with ``noise_multiplier = 0``.

    Attributes:
        norm: largest Euclidean norm of the update over all tensors; of the weights' change under
            FedAvg.
    """

    norm: Annotated[float, Field(gt=0, allow_inf_nan=False)]

    def on_update(self, update: Tensors, rng: torch.Generator) -> Tensors:
        """The clipped update; nothing is drawn."""
        del rng
        return cut(update, self.norm)

    def surrogate(self, update: Tensors) -> Tensors:
        """The same clipping."""
        return cut(update, self.norm)

    @property
    def distortions(self) -> frozenset[Distortion]:
        """The length."""
        return frozenset({"scale"})


def cut(update: Tensors, norm: float) -> Tensors:
    """The update scaled down to ``norm`` where it is longer; integers neither count nor change."""
    scale = norm / squared_norm(update).clamp(min=norm**2).sqrt()
    return {
        name: value * scale.to(value.dtype) if value.is_floating_point() else value
        for name, value in update.items()
    }


def squared_norm(update: Tensors) -> Tensor:
    """Square of the Euclidean norm over all floating-point tensors, a float64 scalar."""
    floating = [value for value in update.values() if value.is_floating_point()]
    return torch.stack([value.to(torch.float64).square().sum() for value in floating]).sum()
