"""SVDefense: each matrix of the update by its largest singular values, its channels weighted."""

import math
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from fedsim.defenses.base import Defense, DefenseFamily, Distortion
from fedsim.defenses.strength import Strength
from fedsim.types import Tensors

_ROUNDED = 1e-4
"""Singular values below this share of the largest are rounding, in float32."""


@dataclass(frozen=True, kw_only=True)
class SvDefense(Defense):
    """Truncates singular values and weighs channels (Luo et al. 2025, 2510.03319, "SVDefense").

    A tensor of several dimensions is a matrix ``M = sum s_i u_i v_i^T`` of output channels by all
    else. With the shares ``p_i = s_i^2 / sum s^2`` and their entropy H, divided by its largest
    value, as few singular values are sent as reach the share of energy

        t = least + (most - least) * H,

    so that an update of few directions, as of a client with few classes, loses most. Row c of what
    is left, M', is multiplied by ``|M'_c| / max |M'|``. Biases get the weights of their layer.

    Read was the abstract alone, here and where the code was announced: truncation by an energy
    threshold of each client's own, and weights of channels. The formulas and numbers are ours, and
    the weights of layers in the server's mean are left out.

    An adaptive attacker divides by the weights, which the lengths of rows tell, and compares all
    but the block that neither the rows' space nor the columns' reaches. Of one example the gradient
    of a linear layer has rank 1, so that no threshold and no weight of rows hides what went into
    it.

    Attributes:
        least: share of the energy that is sent of a matrix of rank 1.
        most: share of the energy that is sent where all singular values are equal.
    """

    title: ClassVar[str] = "SVDefense"
    family: ClassVar[DefenseFamily] = "published"
    run_by: ClassVar[str] = "the client; its idea, with formulas of ours"
    known: ClassVar[str] = "The spaces of what was sent, and the weights, which row lengths tell."
    claim: ClassVar[str] = "robust also to adaptive attackers, minimal loss of accuracy"
    loses: ClassVar[frozenset[Distortion]] = frozenset({"scale", "projection"})
    tuned_by: ClassVar[Strength] = Strength("most", 1.0, 0.5, "linear")

    least: Annotated[float, Field(gt=0, le=1)] = 0.5
    most: Annotated[float, Field(gt=0, le=1)] = 0.9

    def on_update(self, update: Tensors, rng: torch.Generator) -> Tensors:
        """The truncated and weighted update; ``rng`` is not used."""
        del rng
        sent = dict(update)
        for name, value in update.items():
            if value.dim() > 1:
                left, sizes, right = torch.linalg.svd(value.flatten(1), full_matrices=False)
                matrix = (left * sizes * self._sent(sizes)) @ right
                lengths = matrix.norm(dim=1, keepdim=True)
                weights = lengths / lengths.max().clamp(min=1e-30)
                sent[name] = (weights * matrix).view_as(value)
                if (bias := _bias(name)) in update:
                    sent[bias] = update[bias] * weights.flatten()
        return sent

    def comparable(self, guess: Tensors, received: Tensors) -> tuple[Tensors, Tensors]:
        """The guess without that block, and what was received without its weights."""
        fitting, plain = dict(guess), dict(received)
        for name, value in received.items():
            if value.dim() < 2:
                continue
            matrix, guessed = value.flatten(1), guess[name].flatten(1)
            lengths = matrix.norm(dim=1)
            weights = (lengths / lengths.max()).sqrt().clamp(min=_ROUNDED)
            matrix = matrix / weights[:, None]
            left, sizes, right = torch.linalg.svd(matrix, full_matrices=False)
            spanned = (sizes > _ROUNDED * sizes[0]).to(sizes)
            lost = guessed - (left * spanned) @ (left.mT @ guessed)
            lost = lost - (lost @ right.mT * spanned) @ right
            fitting[name], plain[name] = (guessed - lost).view_as(value), matrix.view_as(value)
            if (bias := _bias(name)) in received:
                plain[bias] = received[bias] / weights
        return fitting, plain

    def _sent(self, sizes: Tensor) -> Tensor:
        """1 for each of the singular values that are sent of ``sizes (rank,)``, falling; else 0."""
        shares = sizes.square() / sizes.square().sum().clamp(min=1e-30)
        entropy = torch.special.entr(shares).sum() / math.log(max(len(shares), 2))
        enough = self.least + (self.most - self.least) * entropy
        missing: Tensor = shares.cumsum(0) - shares < enough
        return missing.to(sizes)


def _bias(weight: str) -> str:
    """The name that the bias beside this weight would have."""
    return f"{weight.removesuffix('weight')}bias"
