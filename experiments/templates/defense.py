"""A defense: a frozen dataclass whose fields are its options; written 2026."""

from typing import Annotated

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass

from fedsim.defenses.base import Distortion, StagedDefense
from fedsim.types import Tensors


@dataclass(frozen=True, kw_only=True)
class LaplacianNoise(StagedDefense):
    """Adds Laplacian noise to every coordinate (Zhu et al. 2019, "DLG", section 5).

    Attributes:
        scale: of the distribution, in units of the update.
    """

    scale: Annotated[float, Field(gt=0, allow_inf_nan=False)]

    def transform(self, update: Tensors, rng: torch.Generator) -> Tensors:
        """The noisy update; the difference of two exponential draws is Laplacian."""
        noisy = {}
        for name, value in update.items():
            draws = [torch.empty(value.shape).exponential_(generator=rng) for _ in range(2)]
            noisy[name] = value + self.scale * (draws[0] - draws[1]).to(value)
        return noisy

    @property
    def distortions(self) -> frozenset[Distortion]:
        """What an adaptive attacker has to allow for."""
        return frozenset({"noise"})
