"""Pruning: the largest, a random choice, or neither largest nor smallest are sent."""

from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from fedsim.defenses.base import DefenseFamily, Distortion, Repeatable, StagedDefense
from fedsim.defenses.strength import Strength
from fedsim.magnitudes import each_float
from fedsim.types import Tensors


@dataclass(frozen=True, kw_only=True)
class Prune(StagedDefense):
    """Zeroes all but some coordinates (Zhu et al. 2019; as in Wu et al. 2023, "LTI").

    Of m coordinates, ``m * (1 - fraction)`` are kept, rounded to the nearest integer (LTI rounds
    down) and at least one. With ``scope = "global"`` this is top-k sparsification (Aji and Heafield
    2017) without error feedback: clients keep no state, so no residual is carried to the next
    round.

    The support is visible, and an adaptive attacker compares only the coordinates in it. That of a
    mean of pruned examples is the union of theirs; there, and where noise added later hides it, an
    attacker prunes the guess by the surrogate.

    Attributes:
        fraction: share of the coordinates that is zeroed.
        scope: ``global`` ranks the coordinates of all tensors together (LTI), so small layers may
            vanish; ``tensor`` ranks each tensor on its own (GradAttack).
        keep: the ``largest`` magnitudes, or ``random`` coordinates, each kept independently (LAMP,
            2022).
    """

    title: ClassVar[str] = "pruning"
    family: ClassVar[DefenseFamily] = "compression"
    run_by: ClassVar[str] = "the client; top-k sparsification in most libraries"
    known: ClassVar[str] = "The zeros, and of the largest that no other coordinate is above them."
    loses: ClassVar[frozenset[Distortion]] = frozenset({"sparsity"})
    tuned_by: ClassVar[Strength] = Strength("fraction", 0.5, 0.9999, "rest")

    fraction: Annotated[float, Field(ge=0, lt=1)]
    scope: Literal["global", "tensor"] = "global"
    keep: Literal["largest", "random"] = "largest"

    def transform(self, update: Tensors, rng: torch.Generator) -> Tensors:
        """The pruned update; random choices are drawn where ``rng`` lives, in the model's order."""
        if self.keep == "largest":
            return self.surrogate(update)
        return each_float(update, lambda value: value * self._mask(value, rng))

    def _mask(self, value: Tensor, rng: torch.Generator) -> Tensor:
        drawn = torch.rand(value.shape, generator=rng, device=rng.device) >= self.fraction
        return drawn.to(value.device)

    def surrogate(self, update: Tensors) -> Tensors:
        """The same pruning, with a mask constant under differentiation; the identity if random."""
        if self.keep == "random":
            return update
        floating = {name: value for name, value in update.items() if value.is_floating_point()}
        if self.scope == "global":
            return {**update, **self._prune(floating)}
        pruned = update.copy()
        for name, value in floating.items():
            pruned |= self._prune({name: value})
        return pruned

    @property
    def keeps_largest(self) -> bool:
        """True unless the choice is random."""
        return self.keep == "largest"

    def _prune(self, tensors: Tensors) -> Tensors:
        flat = torch.cat([value.flatten() for value in tensors.values()])
        keep = max(1, round(flat.numel() * (1 - self.fraction)))
        pruned = flat.where(largest(flat, keep), 0)
        parts = torch.split(pruned, [value.numel() for value in tensors.values()])
        return {
            name: part.view_as(value).to(value.dtype)
            for (name, value), part in zip(tensors.items(), parts, strict=True)
        }


def largest(values: Tensor, keep: int) -> Tensor:
    """Mask ``(coordinate,)`` of the ``keep`` largest magnitudes; ties go to the first ones."""
    magnitude = values.detach().abs()
    # Not torch.quantile, which refuses more than 16 million elements.
    threshold = magnitude.kthvalue(magnitude.numel() - keep + 1).values
    above = magnitude > threshold
    equal = magnitude == threshold
    return above | (equal & (equal.cumsum(0) <= keep - above.sum()))


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
