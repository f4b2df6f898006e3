"""Privacy of whole clients: each adds noise to its update, or the server to their mean."""

from dataclasses import replace
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass

from fedsim.accountant import Schedule
from fedsim.defenses.base import DefenseFamily, Gaussian, Unit
from fedsim.defenses.budget import Budgeted, CoveredUpdate, Releases
from fedsim.magnitudes import cut
from fedsim.types import Tensors


@dataclass(frozen=True, kw_only=True)
class DpClient(CoveredUpdate, Budgeted):
    """Clips the client's update and adds Gaussian noise to every coordinate of it.

    DP-FedAvg (McMahan et al. 2018) in its local form: the client itself adds the noise, so the
    guarantee holds against the server. With clip C and noise multiplier sigma it sends

        u * min(1, C / |u|) + N(0, (sigma C)^2 I).

    The unit of privacy is everything that one client sends in a round, and T rounds compose to one
    Gaussian mechanism of noise ``sigma / (reach sqrt(T))``, where ``reach`` is 2 or 1 as
    ``adjacency`` says. Being drawn for a round does not amplify privacy, since the server draws,
    and the number of local steps does not matter. As in ``dp_sgd`` the noise is float32 from a
    seeded generator; losses, counts and labels sent with the tensors have none.

    The surrogate is the clipping. An adaptive attacker knows the standard deviation, for which a
    squared distance is the likelihood; it can extract low rank from the noise and average over
    rounds.

    Attributes:
        clip: largest Euclidean norm of the update; under FedAvg, of the change of the weights.
        noise_multiplier: standard deviation of the noise in units of ``clip``; None to derive it
            from ``epsilon``.
        epsilon: privacy budget of each client for all rounds of the run.
        delta: probability with which the budget may be exceeded.
        adjacency: ``replace`` compares any two updates, which differ by up to ``2 clip``;
            ``zero_out`` compares an update with none, which differ by up to ``clip`` (Kairouz et
            al. 2021).
    """

    family: ClassVar[DefenseFamily] = "DP"
    known: ClassVar[str] = "Clipping norm and noise, by which a squared distance is the likelihood."
    name: ClassVar[str] = "dp_client"
    depends: ClassVar[str] = "its rounds"

    adjacency: Literal["replace", "zero_out"] = "replace"

    def on_update(self, update: Tensors, rng: torch.Generator) -> Tensors:
        """The clipped update with noise.

        Raises:
            ConfigError: the noise is unknown, because ``fit`` was not called.
        """
        return self._covered(cut(update, self.clip), rng)

    @property
    def unit(self) -> Unit:
        """Everything that a client sends in a round."""
        return "update"

    @property
    def gaussian(self) -> Gaussian:
        """The noise; two updates differ by up to ``2 clip``, an update and none by ``clip``."""
        return replace(super().gaussian, reach=2.0 if self.adjacency == "replace" else 1.0)

    def _releases(self, schedule: Schedule) -> list[Releases]:
        return [Releases(schedule.rounds, 1.0, self.gaussian.reach)]


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
