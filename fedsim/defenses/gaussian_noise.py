"""Gaussian noise on every coordinate of the update, without clipping."""

from typing import Annotated, ClassVar

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from fedsim.defenses.base import DefenseFamily, Distortion, Gaussian, StagedDefense
from fedsim.defenses.strength import Strength
from fedsim.magnitudes import each_float
from fedsim.types import Tensors


@dataclass(frozen=True, kw_only=True)
class GaussianNoise(StagedDefense):
    """Adds N(0, std^2) to every floating-point coordinate (Zhu et al. 2019, "DLG", section 5).

    Nothing is clipped, so this is not differential privacy. At stage ``sample`` each of B single
    gradients gets its own noise, and their mean carries noise of standard deviation
    ``std / sqrt(B)``. The surrogate is the identity, since the noise has mean 0.

    Attributes:
        std: standard deviation in units of the update, whose scale depends on the model.
    """

    title: ClassVar[str] = "Gaussian noise"
    family: ClassVar[DefenseFamily] = "baseline"
    run_by: ClassVar[str] = "the client; every paper on inversion compares with it"
    known: ClassVar[str] = "The standard deviation, by which a squared distance is the likelihood."
    loses: ClassVar[frozenset[Distortion]] = frozenset({"noise"})
    tuned_by: ClassVar[Strength] = Strength("std", 1e-5, 1.0)

    std: Annotated[float, Field(ge=0, allow_inf_nan=False)]

    def transform(self, update: Tensors, rng: torch.Generator) -> Tensors:
        """The update with noise, drawn in float32 where ``rng`` lives, in the model's order."""
        return each_float(update, lambda value: value + self._noise(value, rng))

    @property
    def gaussian(self) -> Gaussian:
        """The noise."""
        return Gaussian(self.std)

    def _noise(self, value: Tensor, rng: torch.Generator) -> Tensor:
        drawn = torch.randn(value.shape, generator=rng, device=rng.device, dtype=torch.float32)
        return (self.std * drawn).to(value)
