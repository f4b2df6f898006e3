"""pFGD: the lowest frequencies of each tensor of the update are left out."""

import math
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from fedsim.defenses.base import DefenseFamily, Distortion, Repeatable
from fedsim.defenses.strength import Strength
from fedsim.magnitudes import each_float
from fedsim.types import Tensors


@dataclass(frozen=True, kw_only=True)
class Pfgd(Repeatable):
    """Prunes frequencies of the update (Palihawadana et al. 2023, "pFGD").

    Each tensor is flattened to x of length n. With the orthonormal cosine transform of type IV,

        X_k = sqrt(2 / n) sum_i x_i cos(pi / n (i + 1/2) (k + 1/2)),

    the first ``n * fraction`` coefficients, rounded down, are set to 0, and the inverse is sent. As
    in the authors' code, the lowest frequencies go, not the smallest coefficients.

    This is a projection that everybody knows. The surrogate is it, so that an adaptive attacker
    loses a share ``fraction`` of the equations and nothing else.

    Attributes:
        fraction: share of the coefficients that is left out.
    """

    title: ClassVar[str] = "pFGD"
    family: ClassVar[DefenseFamily] = "published"
    run_by: ClassVar[str] = "the client; the authors' code has it"
    known: ClassVar[str] = "The projection itself, as a differentiable function."
    claim: ClassVar[str] = "mitigates inversion"
    loses: ClassVar[frozenset[Distortion]] = frozenset({"projection"})
    tuned_by: ClassVar[Strength] = Strength("fraction", 0.01, 0.99, "linear")

    fraction: Annotated[float, Field(ge=0, lt=1)] = 0.01

    def surrogate(self, update: Tensors) -> Tensors:
        """The projection itself."""
        return each_float(update, self._pruned)

    def _pruned(self, value: Tensor) -> Tensor:
        count = int(value.numel() * self.fraction)
        if not count:
            return value
        coefficients = cosines(value.flatten())
        high = torch.arange(value.numel(), device=value.device) >= count
        return cosines(coefficients * high).view_as(value).to(value.dtype)


def cosines(values: Tensor) -> Tensor:
    """Orthonormal cosine transform of type IV of ``values (coordinate,)``, its own inverse."""
    size = values.numel()
    places = torch.arange(size, device=values.device, dtype=torch.float64)
    wide = torch.complex128 if values.dtype == torch.float64 else torch.complex64
    before = torch.polar(torch.ones_like(places), -math.pi * places / (2 * size)).to(wide)
    after = torch.polar(torch.ones_like(places), -math.pi * (2 * places + 1) / (4 * size)).to(wide)
    waves = torch.fft.fft(values * before, n=2 * size)[:size]
    products: Tensor = (waves * after).real
    return math.sqrt(2 / size) * products
