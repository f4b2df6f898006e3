"""Common part of the differentially private defenses: clipping, noise and privacy budget."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, ClassVar, NamedTuple, Self

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from fedsim import accountant
from fedsim.accountant import Schedule
from fedsim.defenses.base import Defense, Distortion, Gaussian
from fedsim.defenses.gaussian_noise import GaussianNoise
from fedsim.defenses.strength import Strength
from fedsim.errors import ConfigError
from fedsim.magnitudes import cut
from fedsim.types import Tensors


class Releases(NamedTuple):
    """Gaussian mechanisms to be composed.

    Attributes:
        number: number of mechanisms.
        rate: probability with which each of them samples the protected unit.
        reach: sensitivity, the largest distance between the results for neighbours, in units of
            ``clip``.
    """

    number: int
    rate: float
    reach: float = 1.0


@dataclass(frozen=True, kw_only=True)
class Budgeted(Defense):
    """Clipping and Gaussian noise, whose level is given or derived from a privacy budget.

    Attributes:
        clip: largest Euclidean norm of the protected quantity.
        noise_multiplier: standard deviation of the noise in units of ``clip``; None to derive it
            from ``epsilon``.
        epsilon: privacy budget of each client for all rounds of the run.
        delta: probability with which the budget may be exceeded.
    """

    name: ClassVar[str]
    depends: ClassVar[str]
    """What the noise for a budget depends on, for messages."""

    clip: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    noise_multiplier: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    epsilon: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    delta: Annotated[float, Field(gt=0, lt=1)] = 1e-5

    def __post_init__(self) -> None:
        if (self.noise_multiplier is None) == (self.epsilon is None):
            both = "neither is" if self.epsilon is None else "both are"
            raise ValueError(
                f"noise_multiplier or epsilon determines the noise, but {both} given; "
                "set one of them"
            )

    def fit(self, schedule: Schedule) -> Self:
        """The same defense, with the noise that ``epsilon`` requires under this schedule."""
        if self.epsilon is None:
            return self
        noises = (
            reach
            * accountant.noise_multiplier(
                steps=number, rate=rate, target=self.epsilon, delta=self.delta
            )
            for number, rate, reach in self._releases(schedule)
        )
        return replace(self, noise_multiplier=min(noises), epsilon=None)

    def epsilon_after(self, spent: Schedule) -> float:
        """Epsilon of everything released under the schedule ``spent``.

        Raises:
            ConfigError: the noise is unknown, because ``fit`` was not called.
        """
        reach = self.gaussian.reach
        return min(
            accountant.epsilon(
                steps=number, rate=rate, noise_multiplier=noise / reach, delta=self.delta
            )
            for number, rate, noise in self.released(spent)
        )

    def released(self, spent: Schedule) -> list[tuple[int, float, float]]:
        """The releases of the schedule, as in ``Defense``.

        Raises:
            ConfigError: the noise is unknown, because ``fit`` was not called.
        """
        noise, reach = self._multiplier(), self.gaussian.reach
        return [
            (each.number, each.rate, noise * reach / each.reach) for each in self._releases(spent)
        ]

    def surrogate(self, update: Tensors) -> Tensors:
        """Clipping of the whole update, without noise; exact for a batch of one example."""
        return cut(update, self.clip)

    @property
    def distortions(self) -> frozenset[Distortion]:
        """The length, and noise unless the noise multiplier is 0."""
        return frozenset({"scale"} if self.noise_multiplier == 0 else {"scale", "noise"})

    @property
    def gaussian(self) -> Gaussian:
        """The noise, not known before ``fit`` if a budget determines it."""
        std = None if self.noise_multiplier is None else self.noise_multiplier * self.clip
        return Gaussian(std, self.clip, delta=self.delta)

    @property
    def strength(self) -> Strength:
        """Whichever of the budget and the noise is given."""
        if self.epsilon is None:
            return Strength("noise_multiplier", 1e-4, 10.0)
        return Strength("epsilon", 1e6, 1.0)

    def _covered(self, tensors: Tensors, rng: torch.Generator) -> Tensors:
        """The tensors with noise, drawn in float32 where ``rng`` lives, in the order of the model.

        Raises:
            ConfigError: the noise is unknown, because ``fit`` was not called.
        """
        return GaussianNoise(std=self._multiplier() * self.clip).transform(tensors, rng)

    def _multiplier(self) -> float:
        if self.noise_multiplier is None:
            raise ConfigError(
                f"{self.name}.epsilon: {self.epsilon} is a budget for a whole run, and the "
                f"noise that it requires depends on {self.depends}. Call fit first, or set "
                "noise_multiplier."
            )
        return self.noise_multiplier

    @abstractmethod
    def _releases(self, schedule: Schedule) -> Sequence[Releases]:
        """The same releases seen in one or more ways, each of which bounds epsilon from above."""


def normalising(model: nn.Module) -> str | None:
    """Name of the first batch normalisation layer in train mode; None if there is none."""
    layers = model.named_modules()
    return next((k for k, part in layers if isinstance(part, _BatchNorm) and part.training), None)


@dataclass(frozen=True, kw_only=True)
class CoveredUpdate(Defense):
    """Clipping and noise for a client's update, which do not cover its running statistics.

    A model that keeps them is as private as any other: the update is clipped as a whole, whatever
    the client made it of.
    """

    name: ClassVar[str]

    def on_statistics(self, model: nn.Module) -> None:
        """Refuse batch statistics.

        Raises:
            ConfigError: the model, in train mode, has some.
        """
        if layer := normalising(model):
            raise ConfigError(
                f"{self.name}: the running statistics of {layer!r}, a batch normalisation layer of "
                f"{type(model).__name__} in train mode, would be sent neither clipped nor covered "
                'by noise. Set federation.batch_statistics = "kept"; or, without any epsilon, '
                "choose the defenses clip and gaussian_noise."
            )
