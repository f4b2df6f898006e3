"""A client's local steps taken again on guessed images, in guessed order."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from attacks.observed.declared import declared_training
from attacks.observed.local_steps import LocalSteps
from attacks.observed.replay import Replay
from fedsim.config.federation import FederationConfig
from fedsim.local.unrolled import unrolled_update, unrolls
from fedsim.store.capture import Observation
from fedsim.types import Batch, Tensors

_MOST = 10
"""Local steps; each takes as long as a gradient, and the order of many is out of reach."""


@dataclass(frozen=True)
class SimulatedSteps:
    """The local steps of a client whose order of examples is not known.

    Attributes:
        model: the broadcast model.
        config: how the client trains.
        spread: distribution of its examples over the steps of an epoch.
    """

    model: Replay
    config: FederationConfig
    spread: LocalSteps

    @classmethod
    def of(cls, observation: Observation, model: Replay) -> SimulatedSteps | None:
        """None for a single step, for a cohort, and where what is granted does not tell them."""
        known = observation.knowledge
        if observation.kind == "gradient" or known.cohort > 1:
            return None
        if None in (known.learning_rate, known.optimizer, known.training):
            return None
        config, spread = declared_training(observation), LocalSteps.of(observation)
        if spread is None or not 1 < spread.steps <= _MOST or not unrolls(config):
            return None
        return cls(model, config, spread)

    @property
    def sizes(self) -> list[int]:
        """Number of examples in each step."""
        places = [place for place, _ in self.spread.batches]
        taken = [places[step % len(places)] for step in range(self.spread.steps)]
        return [place.stop - place.start for place in taken]

    @property
    def epochs(self) -> list[slice]:
        """The places of each epoch, whose examples all differ; the last may be cut short."""
        total, rows = sum(self.sizes), self.spread.rows
        return [slice(start, min(start + rows, total)) for start in range(0, total, rows)]

    def update(self, batch: Batch, order: Tensor, *, differentiable: bool = True) -> Tensors:
        """How far the steps move the weights.

        Args:
            batch: one example for each row of the client.
            order: which of them stands at each place of the steps, int64 ``(place,)``.
            differentiable: whether the result has a graph back to the batch.
        """
        return unrolled_update(
            self.model.task,
            self.config,
            self.model.network,
            self.model.parameters,
            batch,
            order.split(self.sizes),
            differentiable=differentiable,
        )

    def labels_of(self, labels: Tensor, order: Tensor) -> tuple[tuple[int, ...], ...]:
        """The classes in each step, without their order within it."""
        parts = labels[order.to(labels.device)].split(self.sizes)
        return tuple(tuple(sorted(part.tolist())) for part in parts)
