"""A network that turns the features of an update into the examples behind it, and its training."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import TypeAlias

import torch
from torch import Tensor, nn

from attacks.base import Job
from attacks.inverter_outputs import Pixels, Tokens
from attacks.simulated_updates import SimulatedUpdates
from fedsim.seeds import generator
from fedsim.types import Tensors

Output: TypeAlias = Pixels | Tokens
ENUMERATED = 4
"""Largest batch whose orders are all tried, on the device."""
_FEW = 8
"""Updates of a class below which it is standardised with all others."""
CHECKPOINTED = 60.0
"""Seconds between two checkpoints."""
_MEASURED = 256 << 20
"""Bytes of features, at most, from which they are standardised and regressed on."""
_FARTHEST = 10.0
"""Deviations from the mean beyond which a feature is cut off."""
_RIDGES = (1e-4, 1e-3, 1e-2, 1e-1)
"""Penalties of the linear regression, by the variance of a feature."""


class Inverter(nn.Module):
    """``Linear-ReLU-Linear-ReLU-Linear`` on standardised features (Wu et al. 2022).

    They do not standardise. Where the last features tell the ``classes``, each class has its own
    mean and deviation, and the network's guess is added to that of a linear regression.

    Attributes:
        size: examples of an update.
        linear: the regression, or None.
    """

    mean: Tensor
    deviation: Tensor

    def __init__(
        self, features: int, width: int, size: int, output: Output, classes: int = 0
    ) -> None:
        super().__init__()
        self.size, self.output, self.classes = size, output, classes
        kinds, measured = max(1, classes), features - classes
        self.register_buffer("mean", torch.zeros(kinds, measured))
        self.register_buffer("deviation", torch.ones(kinds, measured))
        self.first = nn.Linear(features, width)
        self.rest = output.layers(width, size)
        self.linear: nn.Linear | None = None
        if classes and isinstance(output, Pixels):
            self.linear = nn.Linear(features, math.prod(output.shape)).requires_grad_(False)

    def standardise(self, features: Tensor) -> None:
        """Set means and deviations to those of ``features (update, feature)``.

        A class of few updates gets those of all.
        """
        values, kinds = self._split(features)
        for kind in range(len(self.mean)):
            own = values[kinds == kind]
            own = own if len(own) >= _FEW else values
            deviation = own.std(0)
            self.mean[kind] = own.mean(0)
            self.deviation[kind] = torch.where(deviation > 1e-6 * deviation.max(), deviation, 1)

    def regress(self, training: tuple[Tensor, Tensor], heldout: tuple[Tensor, Tensor]) -> None:
        """Set the linear regression to least squares, its ridge chosen on held-out updates.

        Args:
            training: features ``(update, feature)`` and examples ``(update, value)``.
            heldout: the same.
        """
        assert self.linear is not None
        features, truths = self._scaled(training[0]), training[1]
        others = self._scaled(heldout[0])
        mean = truths.mean(0)
        gram = (features.T @ features).double()
        right = (features.T @ (truths - mean)).double()
        lowest = math.inf
        for ridge in _RIDGES:
            penalty = ridge * len(features) * torch.eye(len(gram), device=gram.device)
            factor, failed = torch.linalg.cholesky_ex(gram + penalty)
            if failed:
                continue
            weight = torch.cholesky_solve(right, factor).float()
            error = float((others @ weight + mean - heldout[1]).square().mean())
            if error < lowest:
                lowest = error
                self.linear.weight.copy_(weight.T)
                self.linear.bias.copy_(mean)

    def forward(self, features: Tensor) -> Tensor:
        """Guesses ``(update, example, ...)``."""
        scaled = self._scaled(features)
        guesses: Tensor = self.rest(self.first(scaled).relu())
        if self.linear is not None:
            guesses = guesses + self.linear(scaled).view_as(guesses)
        return guesses

    def _split(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """The features that are measured, and the class of each update."""
        values = features[:, : self.mean.shape[1]]
        if not self.classes:
            return values, torch.zeros(len(values), dtype=torch.int64, device=values.device)
        return values, features[:, self.mean.shape[1] :].argmax(1)

    def _scaled(self, features: Tensor) -> Tensor:
        values, kinds = self._split(features)
        scaled = (values - self.mean[kinds]) / self.deviation[kinds]
        rest = features[:, self.mean.shape[1] :]
        return torch.cat([scaled.clamp(-_FARTHEST, _FARTHEST), rest], 1)


def assigned(costs: Tensor) -> Tensor:
    """The cost of the best one-to-one assignment of each update, as a mean over its examples."""
    size = costs.shape[1]
    guess = torch.arange(size, device=costs.device)
    if size <= ENUMERATED:
        orders = torch.tensor(list(permutations(range(size))), device=costs.device)
        return costs[:, guess, orders].mean(-1).amin(1)
    from scipy.optimize import linear_sum_assignment

    found = [linear_sum_assignment(own)[1] for own in costs.detach().cpu().numpy()]
    order = torch.stack([torch.from_numpy(own) for own in found]).to(costs.device)
    return costs.gather(2, order[:, :, None])[:, :, 0].mean(1)


@dataclass(frozen=True)
class Training:
    """How an inverter is trained: Adam, its rate rising for a tenth of the steps, then a cosine.

    Attributes:
        updates: simulated updates of one step.
        seed: of the order of the rows and of the noise.
    """

    epochs: int
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

        Goes on from the job's checkpoint, as if it had not been cut off.

        Args:
            network: untrained.
            simulated: updates of given rows.
            truths: what the examples of ``simulated`` are to be guessed as, ``(row, ...)``.
            rows: those to train on, by which features are standardised too, and those held out,
                which choose the epoch.
            job: deadline, progress and checkpoints.

        Returns:
            The network's tensors, ``heldout`` (the loss), the ``epoch`` it was reached in (0 is the
            start), and how many epochs were ``trained``.
        """
        training, heldout = rows
        size = network.size
        learned = [value for value in network.parameters() if value.requires_grad]
        optimizer = torch.optim.Adam(learned, fused=True)
        done, best = _resume(job.resume(), network, optimizer)
        if not best:
            self._start(network, simulated, truths, training, heldout)
        steps = -(-(len(training) // size) // self.updates)
        kept = time.monotonic()
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
            best["trained"] = torch.tensor(epoch)
            if job.expired:
                break
            if time.monotonic() - kept > CHECKPOINTED:
                job.keep(_checkpoint(epoch, network, optimizer, best))
                kept = time.monotonic()
        return best

    def _batches(self, rows: Tensor, size: int, epoch: int) -> Sequence[Tensor]:
        """Row numbers ``(update, example)`` of each step, in a new order in each epoch."""
        order = torch.randperm(len(rows), generator=generator(self.seed, "order", epoch))
        groups = rows[order[: len(rows) // size * size].to(rows.device)].view(-1, size)
        batches: Sequence[Tensor] = groups.split(self.updates)
        return batches

    @torch.no_grad()
    def _start(
        self,
        network: Inverter,
        simulated: SimulatedUpdates,
        truths: Tensor,
        training: Tensor,
        heldout: Tensor,
    ) -> None:
        """Standardise the features by the training rows, and regress on them."""
        rng, size = self._rng(truths.device, "start"), network.size
        most = max(self.updates, _MEASURED // (4 * network.first.in_features))
        batches = self._batches(training, size, 0)[: -(-most // self.updates)]
        features = torch.cat([simulated(rows, rng) for rows in batches])
        network.standardise(features)
        if network.linear is not None:
            others = torch.cat([simulated(rows, rng) for rows in heldout[:, None].split(256)])
            examples = truths[torch.cat(list(batches))[:, 0]]
            network.regress((features, examples), (others, truths[heldout]))

    @torch.no_grad()
    def _heldout(
        self,
        network: Inverter,
        simulated: SimulatedUpdates,
        truths: Tensor,
        heldout: Tensor,
    ) -> Tensor:
        """Mean loss on the held-out rows, whose noise is the same in each epoch."""
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
    """Share of the learning rate: up in a tenth of the steps, and down to 0 as a cosine."""
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
    """Load a checkpoint, if there is one: the epochs done, and the best parameters so far."""
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
