"""Central differential privacy: the server adds the noise, after it has seen every update."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import nn

from fedsim.defenses.base import Defense, DefenseFamily, Following, Gaussian
from fedsim.defenses.budget import refuse_sent_statistics

_CLIP_RATE = 0.2
"""Rate at which the norm follows the quantile, that of Andrew et al."""


@dataclass(frozen=True, kw_only=True)
class DpServer(Defense):
    """Adds noise at the server (central DP-FedAvg, McMahan et al. 2018), hiding nothing from it.

    The client does nothing: the server receives bit for bit what it would receive without this
    defense, so attacks lose nothing. ``server.noise`` clips each update to norm C and averages them
    with weights w_k,

        mean = sum_k w_k u_k min(1, C / |u_k|) + N(0, (sigma C w)^2 I),  w = max_k w_k,

    which costs utility. Epsilon would protect the other clients from whoever receives the model,
    but not from the server that this project is about; none is claimed, and its column stays empty.
    Under secure aggregation the server clips the means of cohorts, which are all that it has.

    With ``quantile`` g the norm follows the updates (Andrew et al. 2021): after each round, with b
    the share of updates that were no longer than C,

        C <- C exp(-0.2 (b + N(0, count_std^2) / clients - g)),

    and the noise on the updates grows to ``(sigma^-2 - (2 count_std)^-2)^-1/2``, so that both
    together are as private as sigma. Flower 1.41 takes b to be the share that was clipped, with the
    same sign: its norm runs away from the quantile, to 0 if more are clipped and without end if
    fewer are.

    Attributes:
        clip: largest Euclidean norm of one client's update; with ``quantile`` in the first round.
        noise_multiplier: standard deviation of the noise on the sum, in units of the norm.
        quantile: share of the updates that the norm is to leave as they are; None for a fixed norm.
        count_std: standard deviation of the noise on the number of updates that are not longer.
    """

    family: ClassVar[DefenseFamily] = "DP"
    run_by: ClassVar[str] = (
        "the server, after it has seen every update; as Flower's server-side clipping"
    )
    known: ClassVar[str] = "Everything: the update arrives as it was."

    clip: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    noise_multiplier: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    quantile: Annotated[float, Field(ge=0, le=1)] | None = None
    count_std: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0

    def __post_init__(self) -> None:
        if self.count_std and self.quantile is None:
            raise ValueError("count_std is of no use without quantile; set one, or leave it out")
        if 0 < 2 * self.count_std <= self.noise_multiplier:
            raise ValueError(
                f"count_std = {self.count_std:g} spends more than noise_multiplier = "
                f"{self.noise_multiplier:g} allows; raise it above half of that"
            )

    def on_statistics(self, model: nn.Module) -> None:
        """Refuse batch statistics, which would be averaged without noise.

        Raises:
            ConfigError: the model has some.
        """
        refuse_sent_statistics("dp_server", model)

    @property
    def at_server(self) -> Gaussian:
        """Clipping of each update, and noise on their mean for the largest weight of 1."""
        multiplier = self.noise_multiplier
        if self.count_std and multiplier:
            multiplier = (multiplier**-2 - (2 * self.count_std) ** -2) ** -0.5
        return Gaussian(multiplier * self.clip, self.clip)

    @property
    def server_follows(self) -> Following | None:
        """The quantile that the norm follows, if it does."""
        if self.quantile is None:
            return None
        return Following(self.quantile, _CLIP_RATE, self.count_std)
