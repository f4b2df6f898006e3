"""Sign compression: one bit for each coordinate of the update."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from fedsim.defenses.base import DefenseFamily, Distortion, StagedDefense
from fedsim.defenses.encoding import Encoding
from fedsim.magnitudes import each_float, median_magnitude
from fedsim.types import Tensors


@dataclass(frozen=True, kw_only=True)
class Sign(StagedDefense):
    """Sends only the sign of each coordinate: -1, 0 or 1 (Bernstein et al. 2018, "signSGD").

    The sign of 0 is 0, so embedding rows that no token used stay 0 and the set of tokens remains
    readable. The surrogate is ``tanh(g / tau)``; Wu et al. 2023 ("LTI") use it with tau = 1.

    Attributes:
        scale: ``mean`` multiplies the signs of each tensor by its mean magnitude, ``none`` does
            not.
        tau: width of the surrogate, which the client does not use; None for the median magnitude of
            the nonzero coordinates over all tensors.
    """

    family: ClassVar[DefenseFamily] = "compression"
    known: ClassVar[str] = "The signs; a steep function stands for them."
    loses: ClassVar[frozenset[Distortion]] = frozenset({"sign"})

    scale: Literal["none", "mean"] = "none"
    tau: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None

    def transform(self, update: Tensors, rng: torch.Generator) -> Tensors:
        """The signs, scaled if asked for; ``rng`` is not used."""
        del rng
        return each_float(update, lambda value: self._scaled(value.sign(), value))

    def surrogate(self, update: Tensors) -> Tensors:
        """``tanh(g / tau)``, scaled like the signs; tau is constant under differentiation."""
        tau = self.width(update)
        return each_float(update, lambda value: self._scaled((value / tau).tanh(), value))

    def encode(self, packed: Encoding) -> Encoding:
        """One bit for each sign, with a bitmap or indices if some are 0.

        The scale, if there is one, adds a float32 number to each tensor. At stage ``sample`` the
        update is a mean of signs, which cannot be packed.
        """
        if self.stage == "sample":
            return packed
        return Encoding(bits=1, zero=False, sparse=True, bucket=0 if self.scale == "mean" else None)

    @property
    def sends_signs(self) -> bool:
        """True without a scale."""
        return self.scale == "none"

    def sharp(self, width: float) -> Sign:
        """The same signs, their surrogate this narrow in median magnitudes."""
        return _Sharp(stage=self.stage, scale=self.scale, share=width)

    def _scaled(self, signs: Tensor, value: Tensor) -> Tensor:
        return signs * value.abs().mean() if self.scale == "mean" else signs

    def width(self, update: Tensors) -> Tensor | float:
        """``tau``, or the median magnitude that stands for it, without a slope."""
        return median_magnitude(update) if self.tau is None else self.tau


@dataclass(frozen=True, kw_only=True)
class _Sharp(Sign):
    """Signs with a surrogate that is nearly a step."""

    share: float

    def width(self, update: Tensors) -> Tensor | float:
        return self.share * median_magnitude(update)
