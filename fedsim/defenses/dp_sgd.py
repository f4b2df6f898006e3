"""DP-SGD: every example's gradient is clipped, and their sum is covered by noise."""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from pydantic.dataclasses import dataclass

from fedsim.accountant import Schedule
from fedsim.defenses.base import Unit
from fedsim.defenses.budget import Budgeted, Releases
from fedsim.types import Tensors


@dataclass(frozen=True, kw_only=True)
class DpSgd(Budgeted):
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
            are drawn more often, add more noise; so do those that pass several times over the
            ``client_rows`` of a round.
        delta: of the budget; it should be far below one in the number of a client's rows.
    """

    title: ClassVar[str] = "DP-SGD"
    name: ClassVar[str] = "dp_sgd"
    depends: ClassVar[str] = "the client's rows and steps"

    def on_gradient(self, gradient: Tensors, rng: torch.Generator) -> Tensors:
        """The gradient scaled down to the norm ``clip`` where it is longer; nothing is drawn."""
        del rng
        return self.surrogate(gradient)

    def on_sum(self, total: Tensors, rng: torch.Generator) -> Tensors:
        """The sum with noise.

        Raises:
            ConfigError: the noise is not known, since ``fit`` was not called.
        """
        return self._covered(total, rng)

    @property
    def unit(self) -> Unit:
        """One example of one client, added or removed."""
        return "example"

    def _releases(self, schedule: Schedule) -> list[Releases]:
        steps = Releases(schedule.steps, schedule.rate)
        if schedule.turn is None:
            return [steps]
        # A row is in so many sums of a round, or in none of them.
        reach = math.sqrt(schedule.turn.visits)
        return [steps, Releases(schedule.rounds, schedule.turn.chance, reach)]
