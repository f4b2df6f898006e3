"""Dual pruning: the largest coordinates of the update are left out beside the smallest."""

from __future__ import annotations

from typing import Annotated, ClassVar

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass

from fedsim.defenses.base import DefenseFamily, Distortion, Repeatable
from fedsim.defenses.prune import largest
from fedsim.defenses.strength import Strength
from fedsim.magnitudes import each_float
from fedsim.types import Tensors


@dataclass(frozen=True, kw_only=True)
class DualPrune(Repeatable):
    """Zeroes the largest and the smallest magnitudes of each tensor (Xue et al. 2024, "DGP").

    Of a tensor of m coordinates the ``round(m * largest)`` of greatest magnitude are set to 0, and
    of the others the ``round(m * smallest)`` of least; at least one is sent. The largest tell most
    of an image and are what pruning keeps. The authors carry what was left out over to the next
    round: put ``error_feedback`` before it for that. Written from their abstract: how they rank,
    and which shares they choose, was not at hand, and the defaults are fedsim's.

    The zeros are in plain sight, and an adaptive attacker leaves out no more than them. That no
    value sent is above those that were left out is not used.

    Attributes:
        largest: share of the coordinates that is left out at the top.
        smallest: share that is left out at the bottom.
    """

    title: ClassVar[str] = "dual pruning"
    family: ClassVar[DefenseFamily] = "published"
    run_by: ClassVar[str] = "the client"
    known: ClassVar[str] = "The zeros, which are left out of the comparison."
    claim: ClassVar[str] = "withstands the strongest attacks, keeps utility"
    loses: ClassVar[frozenset[Distortion]] = frozenset({"sparsity"})

    largest: Annotated[float, Field(ge=0, lt=1)] = 0.05
    smallest: Annotated[float, Field(ge=0, lt=1)] = 0.75

    def __post_init__(self) -> None:
        if self.largest + self.smallest >= 1:
            raise ValueError("largest and smallest leave nothing to send; lower one of them")

    def surrogate(self, update: Tensors) -> Tensors:
        """The same pruning, with a mask constant under differentiation."""
        return each_float(update, lambda value: value * self._mask(value))

    def _mask(self, value: torch.Tensor) -> torch.Tensor:
        flat, count = value.flatten(), value.numel()
        top = min(round(count * self.largest), count - 1)
        mask = largest(flat, max(top + 1, count - round(count * self.smallest)))
        if top:
            mask = mask & ~largest(flat, top)
        return mask.view_as(value)

    @property
    def strength(self) -> Strength:
        """The share at the bottom."""
        return Strength("smallest", 0.1, 0.94, "rest", end=1 - self.largest)
