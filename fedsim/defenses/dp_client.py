"""Client-level differential privacy: each client clips its update and covers it with noise."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from pydantic.dataclasses import dataclass

from fedsim.accountant import Schedule
from fedsim.defenses.base import Unit
from fedsim.defenses.budget import Budgeted, Releases
from fedsim.defenses.clip import cut
from fedsim.types import Tensors


@dataclass(frozen=True, kw_only=True)
class DpClient(Budgeted):
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

    name: ClassVar[str] = "dp_client"
    depends: ClassVar[str] = "its rounds"

    adjacency: Literal["replace", "zero_out"] = "replace"

    def on_update(self, update: Tensors, rng: torch.Generator) -> Tensors:
        """The clipped update with noise.

        Raises:
            ConfigError: the noise is not known, since ``fit`` was not called.
        """
        return self._covered(cut(update, self.clip), rng)

    @property
    def unit(self) -> Unit:
        """All that a client sends in a round."""
        return "update"

    def _releases(self, schedule: Schedule) -> list[Releases]:
        return [Releases(schedule.rounds, 1.0, 2 if self.adjacency == "replace" else 1)]
