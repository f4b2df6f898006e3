"""DP-SGD: each example's gradient is clipped, and noise is added to their sum."""

import math
from typing import ClassVar

import torch
from pydantic.dataclasses import dataclass
from torch import nn

from fedsim.accountant import Schedule
from fedsim.defenses.base import DefenseFamily, Unit
from fedsim.defenses.budget import Budgeted, Releases, normalising
from fedsim.errors import ConfigError
from fedsim.types import Tensors


@dataclass(frozen=True, kw_only=True)
class DpSgd(Budgeted):
    """Clips each example's gradient and adds noise to their sum (Abadi et al. 2016, algorithm 1).

    With clip C, noise multiplier sigma and a batch of B examples, every local step uses

        g = (sum_i g_i min(1, C / |g_i|) + N(0, (sigma C)^2 I)) / B,

    so the mean carries noise of standard deviation ``sigma C / B``. The norm covers all parameters
    that are sent; frozen ones have no gradient, and tied ones count once. ``fedsim.accountant``
    defines epsilon. It holds if no other defense mixes examples and if the server cannot guess the
    seed: the noise is float32 from a seeded generator, which serves to measure leakage but not to
    keep secrets.

    For a classifier the mean of the single gradients is the gradient of the batch. The loss of a
    language model is a mean over tokens; here each sentence has the same weight, whatever its
    length.

    Attributes:
        clip: largest Euclidean norm of one example's gradient.
        noise_multiplier: standard deviation of the noise in units of ``clip``; None to derive it
            from ``epsilon``.
        epsilon: privacy budget of each client for all rounds of the run. Clients with fewer rows
            sample each row more often and add more noise; so do clients that pass several times
            over the ``client_rows`` of a round.
        delta: probability with which the budget may be exceeded; it should be far below 1 divided
            by the number of a client's rows.
    """

    title: ClassVar[str] = "DP-SGD"
    family: ClassVar[DefenseFamily] = "DP"
    run_by: ClassVar[str] = "the client; Opacus and TensorFlow Privacy have it"
    known: ClassVar[str] = "Clipping norm and noise, by which a squared distance is the likelihood."
    name: ClassVar[str] = "dp_sgd"
    depends: ClassVar[str] = "the client's rows and steps"

    def on_model(self, model: nn.Module) -> None:
        """Refuse batch normalisation, which makes each example's gradient depend on the others.

        Raises:
            ConfigError: a layer of the model in train mode does.
        """
        if layer := normalising(model):
            raise ConfigError(
                f"dp_sgd: {layer!r} of {type(model).__name__} is a batch normalisation layer in "
                "train mode, whose statistics mix the examples that epsilon is to tell apart. "
                "Set federation.train_mode = false, choose a model without batch normalisation, "
                "or protect whole clients by dp_client."
            )

    def on_gradient(self, gradient: Tensors, rng: torch.Generator) -> Tensors:
        """The gradient scaled down to the norm ``clip`` if it is longer; ``rng`` is not used."""
        del rng
        return self.surrogate(gradient)

    def on_sum(self, total: Tensors, rng: torch.Generator) -> Tensors:
        """The sum with noise.

        Raises:
            ConfigError: the noise is unknown, because ``fit`` was not called.
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
        # A row is in at most this many sums of a round, or in none of them.
        reach = math.sqrt(schedule.turn.visits)
        return [steps, Releases(schedule.rounds, schedule.turn.chance, reach)]
