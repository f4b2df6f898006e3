"""Central differential privacy: the server clips, averages and adds noise. It sees all before."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import nn

from fedsim.defenses.base import Defense
from fedsim.defenses.budget import refuse_batch_statistics


@dataclass(frozen=True, kw_only=True)
class DpServer(Defense):
    """Central DP-FedAvg (McMahan et al. 2018): no protection at all against the server itself.

    The client does nothing: what the server receives is bit for bit what it is without this
    defense, and an attack on it loses nothing. ``server.noise`` clips each update and adds
    ``N(0, (noise_multiplier * clip * w)^2)`` to each coordinate of the weighted mean, ``w`` the
    largest weight, so that the global model pays in utility. Epsilon would cover the other clients
    and whoever gets the model, not the server that this project is about; so none is claimed, and
    its column stays empty. Under secure aggregation the server has the means of cohorts alone, and
    it is these that it clips.

    Attributes:
        clip: largest Euclidean norm of one client's update.
        noise_multiplier: standard deviation of the noise in units of ``clip``, on the sum.
    """

    clip: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    noise_multiplier: Annotated[float, Field(ge=0, allow_inf_nan=False)]

    def on_model(self, model: nn.Module) -> None:
        """Leave the model as it is.

        Raises:
            ConfigError: it has batch statistics, which would be averaged without noise.
        """
        refuse_batch_statistics("dp_server", model)
