"""DP-SGD: every example's gradient is clipped, and their sum is covered by noise."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from fedsim import accountant
from fedsim.accountant import Schedule
from fedsim.defenses.base import Defense, Distortion, Unit
from fedsim.defenses.clip import cut
from fedsim.defenses.encoding import Encoding
from fedsim.defenses.gaussian_noise import GaussianNoise
from fedsim.errors import ConfigError
from fedsim.types import Tensors


@dataclass(frozen=True, kw_only=True)
class DpSgd(Defense):
    """Clips each example's gradient and adds noise to their sum (Abadi et al. 2016, algorithm 1).

    In every local step the sum of the clipped gradients, plus N(0, (noise_multiplier * clip)^2) in
    each coordinate, is divided by the size of the batch. The norm is over all parameters that are
    sent; frozen ones have none, tied ones count once. ``fedsim.accountant`` says what epsilon
    means. It holds where no other defense mixes examples, and for a server that cannot guess the
    seed: the noise is float32 from a seeded generator, good for measuring leakage and not for
    keeping secrets.

    The mean of per-example gradients is the gradient of the batch for a classifier. A language
    model's loss is a mean over tokens; here each sentence counts the same, whatever its length.

    Attributes:
        clip: largest Euclidean norm of one example's gradient.
        noise_multiplier: standard deviation of the noise in units of ``clip``; None to have it from
            ``epsilon``.
        epsilon: budget of each client for all rounds of the run. Clients with fewer rows, which
            are drawn more often, add more noise.
        delta: of the budget; it should be far below one in the number of a client's rows.
    """

    clip: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    noise_multiplier: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    epsilon: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    delta: Annotated[float, Field(gt=0, lt=1)] = 1e-5

    def __post_init__(self) -> None:
        if (self.noise_multiplier is None) == (self.epsilon is None):
            both = "neither is" if self.epsilon is None else "both are"
            raise ValueError(
                f"noise_multiplier or epsilon says how much noise there is, and {both} given; "
                "set one of them"
            )

    def on_model(self, model: nn.Module) -> None:
        """Leave the model as it is.

        Raises:
            ConfigError: it has batch statistics, and would update them.
        """
        refuse_batch_statistics("dp_sgd", model)

    def fit(self, schedule: Schedule) -> DpSgd:
        """With the noise that ``epsilon`` asks for, if it is given."""
        if self.epsilon is None:
            return self
        noise = accountant.noise_multiplier(
            steps=schedule.steps, rate=schedule.rate, target=self.epsilon, delta=self.delta
        )
        return replace(self, noise_multiplier=noise, epsilon=None)

    def on_gradient(self, gradient: Tensors, rng: torch.Generator) -> Tensors:
        """The gradient scaled down to the norm ``clip`` where it is longer; nothing is drawn."""
        del rng
        return self.surrogate(gradient)

    def on_sum(self, total: Tensors, rng: torch.Generator) -> Tensors:
        """The sum with noise, drawn in float32 where ``rng`` lives, in the model's order.

        Raises:
            ConfigError: the noise is not known, since ``fit`` was not called.
        """
        if self.noise_multiplier is None:
            raise ConfigError(
                f"dp_sgd.epsilon: {self.epsilon} is a budget, and how much noise it takes depends "
                "on the client's rows and steps. Call fit first, or set noise_multiplier."
            )
        return GaussianNoise(std=self.noise_multiplier * self.clip).transform(total, rng)

    def surrogate(self, update: Tensors) -> Tensors:
        """The same clipping of the whole update: exact for a batch of one without noise."""
        return cut(update, self.clip)

    def encode(self, packed: Encoding) -> Encoding:
        """Noise fills all bits."""
        del packed
        return Encoding()

    def epsilon_after(self, spent: Schedule) -> float:
        """Epsilon of the local steps.

        Raises:
            ConfigError: the noise is not known, since ``fit`` was not called.
        """
        if self.noise_multiplier is None:
            raise ConfigError(
                f"dp_sgd.epsilon: {self.epsilon} is a budget for a whole run. Call fit first."
            )
        return accountant.epsilon(
            steps=spent.steps,
            rate=spent.rate,
            noise_multiplier=self.noise_multiplier,
            delta=self.delta,
        )

    @property
    def distortions(self) -> frozenset[Distortion]:
        """Clipping, and noise where there is any."""
        return frozenset({"scale"} if self.noise_multiplier == 0 else {"scale", "noise"})

    @property
    def unit(self) -> Unit:
        """One example of one client, added or removed."""
        return "example"


def refuse_batch_statistics(name: str, model: nn.Module) -> None:
    """Raise ``ConfigError`` where a model in train mode would send statistics without noise."""
    mixing = [
        own for own, part in model.named_modules() if isinstance(part, _BatchNorm) and part.training
    ]
    if mixing:
        raise ConfigError(
            f"{name}: {mixing[0]!r} of {type(model).__name__} is a batch normalisation in "
            "train mode, whose statistics mix the examples and are sent without noise. "
            "Set federation.train_mode = false, or choose a model without it."
        )
