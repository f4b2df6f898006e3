"""Client-level differential privacy: each client clips its update and covers it with noise."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Literal

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import nn

from fedsim import accountant
from fedsim.accountant import Schedule
from fedsim.defenses.base import Defense, Distortion, Unit
from fedsim.defenses.clip import cut
from fedsim.defenses.dp_sgd import refuse_batch_statistics
from fedsim.defenses.encoding import Encoding
from fedsim.defenses.gaussian_noise import GaussianNoise
from fedsim.errors import ConfigError
from fedsim.types import Tensors


@dataclass(frozen=True, kw_only=True)
class DpClient(Defense):
    """Clips the update and adds N(0, (noise_multiplier * clip)^2) to each coordinate of it.

    DP-FedAvg (McMahan et al. 2018) in its local form: the client adds the noise itself, so that it
    holds against the server. Unit of privacy: all that one client sends in a round. Composition:
    the rounds in which that client takes part, as one Gaussian mechanism each. Being drawn for a
    round amplifies nothing, since the server draws; neither does the number of local steps count.
    As in ``dp_sgd`` the noise is float32 from a seeded generator, and losses, counts and labels
    beside the tensors have none.

    The surrogate is the clipping: an adaptive attacker knows the noise's deviation, for which a
    squared distance is the likelihood, takes low rank out of the noise, and may average over
    rounds.

    Attributes:
        clip: largest Euclidean norm of the update, of the weights' change under FedAvg.
        noise_multiplier: standard deviation of the noise in units of ``clip``; None to have it from
            ``epsilon``.
        epsilon: budget of each client for all rounds of the run.
        delta: of the budget.
        adjacency: ``replace`` compares any two updates, which differ by ``2 clip``; ``zero_out``
            compares an update with none at all, which differ by ``clip`` (Kairouz et al. 2021).
    """

    clip: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    noise_multiplier: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    epsilon: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    delta: Annotated[float, Field(gt=0, lt=1)] = 1e-5
    adjacency: Literal["replace", "zero_out"] = "replace"

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
            ConfigError: it has batch statistics, which are sent without noise.
        """
        refuse_batch_statistics("dp_client", model)

    def fit(self, schedule: Schedule) -> DpClient:
        """With the noise that ``epsilon`` asks for, if it is given."""
        if self.epsilon is None:
            return self
        noise = accountant.noise_multiplier(
            steps=schedule.rounds, rate=1.0, target=self.epsilon, delta=self.delta
        )
        return replace(self, noise_multiplier=noise * self._sensitivity, epsilon=None)

    def on_update(self, update: Tensors, rng: torch.Generator) -> Tensors:
        """The clipped update with noise, drawn in float32 where ``rng`` lives, in model order."""
        std = self._multiplier() * self.clip
        return GaussianNoise(std=std).transform(cut(update, self.clip), rng)

    def surrogate(self, update: Tensors) -> Tensors:
        """The same clipping, without noise."""
        return cut(update, self.clip)

    def encode(self, packed: Encoding) -> Encoding:
        """Noise fills all bits."""
        del packed
        return Encoding()

    def epsilon_after(self, spent: Schedule) -> float:
        """Epsilon of the rounds."""
        noise = self._multiplier() / self._sensitivity
        return accountant.epsilon(
            steps=spent.rounds, rate=1.0, noise_multiplier=noise, delta=self.delta
        )

    def _multiplier(self) -> float:
        if self.noise_multiplier is None:
            raise ConfigError(
                f"dp_client.epsilon: {self.epsilon} is a budget for a whole run, and how much "
                "noise it takes depends on its rounds. Call fit first, or set noise_multiplier."
            )
        return self.noise_multiplier

    @property
    def distortions(self) -> frozenset[Distortion]:
        """Clipping, and noise where there is any."""
        return frozenset({"scale"} if self.noise_multiplier == 0 else {"scale", "noise"})

    @property
    def unit(self) -> Unit:
        """All that a client sends in a round."""
        return "update"

    @property
    def _sensitivity(self) -> int:
        """In units of ``clip``."""
        return 2 if self.adjacency == "replace" else 1
