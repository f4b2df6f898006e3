"""Simulated updates, and the training of an inverter on them, with checkpoints."""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from attacks.base import Job
from attacks.learned.inverter import Inverter, assigned
from attacks.learned.simulated_client import SimulatedClient
from attacks.observed.local_steps import LocalSteps
from fedsim.seeds import generator
from fedsim.types import Batch, Tensors

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


CHECKPOINTED = 60.0
"""Seconds between two checkpoints."""
MEASURED = 256 << 20
"""Most bytes of features by which they are standardised."""


@dataclass(frozen=True)
class Training:
    """Schedule of a training by Adam: linear warm-up for a tenth of the steps, then a cosine.

    Attributes:
        patience: epochs without a lower loss on held-out rows that end the training.
        updates: number of simulated updates in one step.
        seed: of the order of the rows and of the noise.
    """

    epochs: int
    patience: int
    updates: int
    learning_rate: float
    seed: int

    def run(
        self,
        network: Inverter,
        simulated: SimulatedUpdates,
        truths: Tensor,
        rows: tuple[Tensor, Tensor],
        job: Job,
    ) -> Tensors:
        """Train, and return the parameters of the epoch with the least loss on held-out rows.

        A training resumed from the job's checkpoint gives the same result as an uninterrupted one.

        Args:
            network: untrained.
            simulated: updates of given rows.
            truths: target outputs for the examples of ``simulated``, ``(row, ...)``.
            rows: row numbers to train on, which also standardise the features, and held-out ones,
                which choose the epoch.
            job: deadline, progress and checkpoints.

        Returns:
            The network's tensors, the ``heldout`` loss, the ``epoch`` that reached it (0 is the
            start), and ``expired``, whether the clock ended the training.
        """
        training, heldout = rows
        size = network.size
        optimizer = torch.optim.Adam(network.parameters(), fused=True)
        done, best = _resume(job.resume(), network, optimizer)
        if not best:
            self._start(network, simulated, training)
        steps = -(-(len(training) // size) // self.updates)
        saved = time.monotonic()
        for epoch in range(done + bool(best), self.epochs + 1):
            rng = self._rng(truths.device, "epoch", epoch)
            batches = self._batches(training, size, epoch) if epoch else ()
            for step, chosen in enumerate(batches):
                rate = _rate((epoch - 1) * steps + step, self.epochs * steps)
                optimizer.param_groups[0]["lr"] = self.learning_rate * rate
                guesses = network(simulated(chosen, rng))
                loss = assigned(network.output.costs(guesses, truths[chosen])).mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                if job.expired:
                    break
            loss = self._heldout(network, simulated, truths, heldout)
            job.report(epoch, float(loss), "")
            if not best or loss < best["heldout"]:
                best = {name: value.clone() for name, value in network.state_dict().items()}
                best |= {"heldout": loss, "epoch": torch.tensor(epoch)}
            best["expired"] = torch.tensor(job.expired)
            if job.expired or epoch - int(best["epoch"]) >= self.patience:
                break
            if time.monotonic() - saved > CHECKPOINTED:
                job.keep(_checkpoint(epoch, network, optimizer, best))
                saved = time.monotonic()
        return best

    def _batches(self, rows: Tensor, size: int, epoch: int) -> Sequence[Tensor]:
        """Row numbers ``(update, example)`` of each step, in a new order in each epoch."""
        order = torch.randperm(len(rows), generator=generator(self.seed, "order", epoch))
        groups = rows[order[: len(rows) // size * size].to(rows.device)].view(-1, size)
        batches: Sequence[Tensor] = groups.split(self.updates)
        return batches

    @torch.no_grad()
    def _start(self, network: Inverter, simulated: SimulatedUpdates, training: Tensor) -> None:
        """Standardise the features by the training rows."""
        rng = self._rng(training.device, "start")
        most = max(self.updates, MEASURED // (4 * network.first.in_features))
        batches = self._batches(training, network.size, 0)[: -(-most // self.updates)]
        network.standardise(torch.cat([simulated(rows, rng) for rows in batches]))

    @torch.no_grad()
    def _heldout(
        self,
        network: Inverter,
        simulated: SimulatedUpdates,
        truths: Tensor,
        heldout: Tensor,
    ) -> Tensor:
        """Mean loss on the held-out rows, with the same noise in each epoch."""
        size, rng = network.size, self._rng(truths.device, "heldout")
        groups = heldout[: len(heldout) // size * size].view(-1, size)
        losses = [
            assigned(network.output.costs(network(simulated(chosen, rng)), truths[chosen]))
            for chosen in groups.split(self.updates)
        ]
        return torch.cat(losses).mean()

    def _rng(self, device: torch.device, *path: str | int) -> torch.Generator:
        return generator(self.seed, *path, device=device)


def _rate(step: int, steps: int) -> float:
    """Factor of the learning rate: rises over a tenth of the steps, then falls to 0 as a cosine."""
    rising = max(1, steps // 10)
    return min((step + 1) / rising, 0.5 + 0.5 * math.cos(math.pi * step / steps))


def _checkpoint(
    epoch: int, network: nn.Module, optimizer: torch.optim.Optimizer, best: Tensors
) -> Tensors:
    tensors = {f"network.{name}": value for name, value in network.state_dict().items()}
    tensors |= {f"best.{name}": value for name, value in best.items()}
    for number, moments in optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer.{number}.{name}": value for name, value in moments.items()}
    return {"epoch": torch.tensor(epoch), **tensors}


def _resume(
    tensors: Tensors, network: nn.Module, optimizer: torch.optim.Optimizer
) -> tuple[int, Tensors]:
    """Load a checkpoint, if any; return the epochs done and the best parameters so far."""
    if not tensors:
        return 0, {}
    device = next(network.parameters()).device
    parts: dict[str, Tensors] = {"network": {}, "best": {}, "optimizer": {}}
    for name, value in tensors.items():
        kind, _, rest = name.partition(".")
        if rest:
            parts[kind][rest] = value.to(device)
    network.load_state_dict(parts["network"])
    state: dict[int, Tensors] = {}
    for name, value in parts["optimizer"].items():
        number, _, moment = name.partition(".")
        state.setdefault(int(number), {})[moment] = value
    optimizer.load_state_dict({**optimizer.state_dict(), "state": state})
    return int(tensors["epoch"]), parts["best"]
