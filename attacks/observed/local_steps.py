"""The distribution of an update's examples over clients and local steps."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedsim.store.capture import Observation


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
