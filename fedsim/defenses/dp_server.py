"""Central differential privacy: the server adds the noise, after it has seen every update."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field
from pydantic.dataclasses import dataclass

from fedsim.defenses.base import DefenseFamily, Gaussian
from fedsim.defenses.budget import CoveredUpdate


@dataclass(frozen=True, kw_only=True)
class DpServer(CoveredUpdate):
    """Adds noise at the server (central DP-FedAvg, McMahan et al. 2018), hiding nothing from it.

    The client does nothing: the server receives bit for bit what it would receive without this
    defense, so attacks lose nothing. ``server.noise`` clips each update to norm C and averages them
    with weights w_k,

        mean = sum_k w_k u_k min(1, C / |u_k|) + N(0, (sigma C w)^2 I),  w = max_k w_k,

    which costs utility. Epsilon would protect the other clients from whoever receives the model,
    but not from the server that this project is about; none is claimed, and its column stays empty.
    Under secure aggregation the server clips the means of cohorts, which are all that it has.

    Attributes:
        clip: largest Euclidean norm of one client's update.
        noise_multiplier: standard deviation of the noise on the sum, in units of the norm.
    """

    family: ClassVar[DefenseFamily] = "DP"
    run_by: ClassVar[str] = (
        "the server, after it has seen every update; as Flower's server-side clipping"
    )
    known: ClassVar[str] = "Everything: the update arrives as it was."
    name: ClassVar[str] = "dp_server"

    clip: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    noise_multiplier: Annotated[float, Field(ge=0, allow_inf_nan=False)]

    @property
    def at_server(self) -> Gaussian:
        """Clipping of each update, and noise on their mean for the largest weight of 1."""
        return Gaussian(self.noise_multiplier * self.clip, self.clip)
