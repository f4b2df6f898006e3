"""Simulated updates of clients that hold the attacker's own rows, to train an inverter on."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from attacks.learned.simulated_client import SimulatedClient
from attacks.observed.local_steps import LocalSteps
from fedsim.types import Batch

MEMORY = 4 << 30
"""Most bytes of features that are kept; beyond that they are recomputed in each epoch."""
_SLICE = 256
"""Most updates of single examples simulated in one pass."""
_SLICE_BYTES = 512 << 20
"""Most bytes of their linear features. A pass takes twice as much: of ResNet18 1.0 GiB at 12
updates, .7 at 8 and 2.0 at 24, which take as long each; 256 would take 21 GiB."""


class SimulatedUpdates:
    """Updates of auxiliary rows, as features.

    What single examples give is kept where updates are means of it and it fits into the memory;
    otherwise each update is simulated anew. The Gaussian noise that comes last is drawn anew, on
    the sums of coordinates that are the features, which is the same in law.

    Attributes:
        linear: the linear features of each row, or None.
        finished: the features of each row, where they are always the same; or where they differ by
            noise, and single examples are too large to be kept or simulated more than once.
    """

    def __init__(self, client: SimulatedClient, batch: Batch, rng: torch.Generator) -> None:
        self.client, self.batch = client, batch
        self.linear: Tensor | None = None
        self.finished: Tensor | None = None
        sizes = client.features.sizes(batch.inputs.device)
        self._deviation = (client.variance * sizes).sqrt()
        large = 4 * len(batch) * len(sizes) > MEMORY
        single = replace(client, spread=LocalSteps())
        if not client.averages(batch):
            return
        if client.size == 1 and (large or not client.variance):
            step = max(1, min(_SLICE, _SLICE_BYTES // (4 * len(sizes))))
            parts = (batch[i : i + step] for i in range(0, len(batch), step))
            self.finished = torch.cat([self._finish(single.linear(p, rng), rng) for p in parts])
        elif not large:
            self.linear = single.linear(batch, rng)

    def __call__(self, rows: Tensor, rng: torch.Generator) -> Tensor:
        """The features ``(update, feature)`` of the examples ``rows (update, example)``."""
        if self.finished is not None:
            return self.finished[rows[:, 0]]
        if self.linear is not None:
            return self._finish(self.client.mean(self.linear[rows]), rng)
        return self._finish(self.client.linear(self.batch[rows.flatten()], rng), rng)

    def _finish(self, linear: Tensor, rng: torch.Generator) -> Tensor:
        if self.client.variance:
            drawn = torch.randn(linear.shape, generator=rng, device=rng.device)
            linear = linear + self._deviation * drawn
        return self.client.features.finish(linear)
