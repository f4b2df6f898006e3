"""A client's local steps: the examples of each, and the steps taken again on guessed images."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from attacks.observed.declared import declared_training
from attacks.observed.replay import Replay
from fedsim.config.federation import FederationConfig
from fedsim.local.unrolled import unrolled_update, unrolls
from fedsim.store.capture import Observation
from fedsim.types import Batch, Tensors


@dataclass(frozen=True, slots=True)
class LocalSteps:
    """What each client of an update did, by the public protocol; by default one step on one row.

    Attributes:
        clients: of the cohort whose mean the update is, each with as many examples.
        rows: examples of each client.
        batch: examples in a local step; the last step of an epoch takes what is left.
        steps: local steps of each client.
    """

    clients: int = 1
    rows: int = 1
    batch: int = 1
    steps: int = 1

    @classmethod
    def of(cls, observation: Observation) -> LocalSteps | None:
        """Those of the client, or of its cohort; None where what is granted does not tell.

        The clients of a cohort are taken to have equally many examples.
        """
        known = observation.knowledge
        steps = 1 if observation.kind == "gradient" else known.local_steps
        if known.num_examples is None or steps is None or known.num_examples % known.cohort:
            return None
        rows = known.num_examples // known.cohort
        batch = rows if steps == 1 else known.batch_size
        return None if batch is None else cls(known.cohort, rows, min(batch, rows), steps)

    @property
    def examples(self) -> int:
        """Of all clients."""
        return self.clients * self.rows

    @property
    def batches(self) -> list[tuple[slice, int]]:
        """A client's rows of each step of an epoch, and how many steps take them.

        Rows are in the same order in each epoch, where clients shuffle them.
        """
        starts = range(0, self.rows, self.batch)
        return [
            (
                slice(start, min(start + self.batch, self.rows)),
                len(range(number, self.steps, len(starts))),
            )
            for number, start in enumerate(starts)
        ]

    @property
    def shares(self) -> Tensor:
        """The weight of each example's gradient in the mean gradient of all steps, ``(example,)``.

        Client after client; they add up to 1.
        """
        weights = torch.zeros(self.rows)
        for place, count in self.batches:
            weights[place] = count / (self.steps * (place.stop - place.start))
        return weights.repeat(self.clients) / self.clients

    @property
    def noise(self) -> float:
        """Variance of the mean gradient of all steps, where that of each example's is 1 a step."""
        total = sum(count / (place.stop - place.start) for place, count in self.batches)
        return float(total) / (self.steps**2 * self.clients)


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
