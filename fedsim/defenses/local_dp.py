"""Flower's local differential privacy: each message is clipped and gets noise for its epsilon."""

import math
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass

from fedsim.defenses.base import DefenseFamily, Distortion, Gaussian
from fedsim.defenses.budget import CoveredUpdate
from fedsim.defenses.gaussian_noise import GaussianNoise
from fedsim.defenses.strength import Strength
from fedsim.magnitudes import cut
from fedsim.types import Tensors


@dataclass(frozen=True, kw_only=True)
class LocalDp(CoveredUpdate):
    """Clips the update and adds noise as ``LocalDpMod`` of Flower 1.41 does, with its options.

    The client sends ``u * min(1, C / |u|) + N(0, s^2 I)`` with, for sensitivity D,

        s = D * sqrt(2 * ln(1.25 / delta)) / epsilon,

    the classical Gaussian mechanism (Dwork and Roth 2014, theorem A.1). ``epsilon`` is that of one
    message. The formula holds for epsilon below 1 and for a sensitivity of at least twice the
    clipping norm, neither of which Flower asks for, and T rounds spend more. So no epsilon is
    claimed for a run; ``dp_client`` has one.

    Flower clips and covers every array of the reply; here running batch statistics are not part of
    the update, and have to be kept. The noise comes from the client's seeded generator, Flower's
    from NumPy's global one.

    Attributes:
        clipping_norm: largest Euclidean norm of the update.
        sensitivity: what the update is said to change by between neighbours.
        epsilon: privacy budget of one message.
        delta: probability with which that budget may be exceeded.
    """

    family: ClassVar[DefenseFamily] = "deployed"
    run_by: ClassVar[str] = "the client; Flower's LocalDpMod"
    known: ClassVar[str] = "Clipping norm and noise, by which a squared distance is the likelihood."
    tuned_by: ClassVar[Strength] = Strength("epsilon", 1e6, 1.0)
    name: ClassVar[str] = "local_dp"

    clipping_norm: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    sensitivity: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    epsilon: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    delta: Annotated[float, Field(gt=0, lt=1)]

    @property
    def std(self) -> float:
        """Standard deviation of the noise on each coordinate, in units of the update."""
        return self.sensitivity * math.sqrt(2 * math.log(1.25 / self.delta)) / self.epsilon

    @property
    def overclaims(self) -> str:
        """Where two updates may differ by more than the sensitivity, as twice the clip."""
        apart = 2 * self.clipping_norm
        if not 0 < self.sensitivity < apart:
            return ""
        from fedsim.accountant import epsilon

        noise = self.std / self.clipping_norm
        present, other = (
            epsilon(steps=1, rate=1.0, noise_multiplier=noise, delta=self.delta, replace=replace)
            for replace in (False, True)
        )
        return (
            f"a sensitivity of {self.sensitivity:.3g} beside a clip of {self.clipping_norm:.3g} is "
            f"1/{apart / self.sensitivity:,.0f} of what two updates may differ by: a message "
            f"of this noise has epsilon {present:.3g} (add or remove one) and {other:.3g} (replace "
            "one)"
        )

    def on_update(self, update: Tensors, rng: torch.Generator) -> Tensors:
        """The clipped update with noise, drawn in the order of the model."""
        return GaussianNoise(std=self.std).transform(self.surrogate(update), rng)

    def surrogate(self, update: Tensors) -> Tensors:
        """The clipping, without noise."""
        return cut(update, self.clipping_norm)

    @property
    def distortions(self) -> frozenset[Distortion]:
        """The length, and noise unless the sensitivity is 0."""
        return frozenset({"scale", "noise"} if self.std else {"scale"})

    @property
    def gaussian(self) -> Gaussian:
        """The noise of one message."""
        return Gaussian(self.std, self.clipping_norm)
