"""A client run again with canaries, and the scores of these canaries.

The client's own code runs from the captured broadcasts, on its own rows and with its own seeds, and
canaries are added: to ``dp_sgd`` as examples, whose gradients are summed with the others; to
``dp_client`` as updates of further clients. A coin decides which of them take part. Planting them
in a replay leaves the training as it was, and a canary's gradient does not depend on the weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from experiments.bounds.one_run import CanaryTrial
from fedsim.canaries import LOUD, Canaries, turn
from fedsim.defenses.base import Defense, Gaussian
from fedsim.federation import FederationConfig
from fedsim.local.client import LocalClient
from fedsim.local.steps import schedule
from fedsim.seeds import generator, numpy_generator
from fedsim.types import Batch, Rows, Tensors

Sampler: TypeAlias = Callable[[FederationConfig, int, int, int, int], Sequence[Sequence[int]]]
Shapes: TypeAlias = dict[str, torch.Size]


@dataclass(frozen=True)
class Auditor:
    """Runs one client with canaries.

    Attributes:
        trainer: the client's training, not fitted yet.
        defense: the one that makes the claim.
        rows: the client's own.
        sent: the broadcast of a round.
        sample: draws the batch of a round, as ``fedsim.local.steps.schedule`` does.
    """

    trainer: LocalClient
    defense: Defense
    rows: Rows
    sent: Callable[[int], Tensors]
    sample: Sampler = schedule

    @property
    def _noise(self) -> Gaussian:
        noise = self.defense.gaussian
        assert noise is not None
        return noise

    def trial(self, shapes: Shapes, count: int, client: int, numbers: int) -> CanaryTrial:
        """The scores of ``count`` canaries with every release of the run.

        Args:
            shapes: of the tensors that the client sends.
            count: number of canaries.
            client: number of the client.
            numbers: the first number that no client has.
        """
        seed = self.trainer.seed
        coins = numpy_generator(seed, "audit", client).random(count) < 0.5
        rng = generator(seed, "audit", client)
        if self.defense.unit == "update":
            return self._updates(Canaries.draw(shapes, 1, rng), coins, numbers)
        return self._examples(Canaries.draw(shapes, count, rng), coins, client)

    def _examples(self, canaries: Canaries, coins: NDArray[np.bool_], client: int) -> CanaryTrial:
        """Canaries as further rows, drawn by the client's own sampler at the rate of its rows."""
        planted, count = np.flatnonzero(coins).tolist(), len(self.rows)
        size = min(self.trainer.config.batch_size, count) * (count + len(planted)) // count
        config = self.trainer.config.model_copy(update={"batch_size": size})
        trainer, batch = self.trainer.fit(count), self.trainer.task.encode(self.rows)
        scores = []
        for round_ in range(1, config.rounds + 1):
            drawn = self.sample(config, trainer.seed, count + len(planted), round_, client)[0]
            real = batch[[position for position in drawn if position < count]]
            norm = turn(round_) * LOUD * self._noise.clip
            among = [planted[position - count] for position in drawn if position >= count]
            gradients = tuple(canaries.gradient(canary, norm) for canary in among)
            host = Planted(**vars(trainer), canaries=gradients)
            received = host.defend(self.sent(round_), real, [], round_, client).tensors
            products = canaries.products(received) * len(drawn)
            scores.append(turn(round_) * products / self._noise.clip)
        places = (count + np.cumsum(coins) - coins) / size
        rate = size / (count + len(planted))
        return CanaryTrial(torch.stack(scores, 1).numpy(), coins, places, rate)

    def _updates(self, canary: Canaries, coins: NDArray[np.bool_], numbers: int) -> CanaryTrial:
        """Each coin is a client of its own, which sends one direction, or else its opposite."""
        opposite = 1.0 - self._noise.reach
        trainer, batch = self.trainer.fit(len(self.rows)), self.trainer.task.encode(self.rows)
        scores = torch.zeros(len(coins), trainer.config.rounds, dtype=torch.float64)
        for round_ in range(1, trainer.config.rounds + 1):
            norm = turn(round_) * LOUD * self._noise.clip
            sent, up = self.sent(round_), canary.gradient(0, norm)
            down = {name: value * opposite for name, value in up.items()}
            for number, coin in enumerate(coins):
                client = Replaced(**vars(trainer), canary=up if coin else down)
                received = client.defend(sent, batch[:1], [], round_, numbers + number).tensors
                product = turn(round_) * canary.products(received)[0] / self._noise.clip
                scores[number, round_ - 1] = (product - opposite) / (1 - opposite)
        return CanaryTrial(scores.numpy(), coins, np.zeros(len(coins)))


@dataclass(frozen=True)
class Planted(LocalClient):
    """A client in whose batch canaries stand as further examples, for ``dp_sgd``."""

    canaries: tuple[Tensors, ...]

    def single_gradients(self, model: nn.Module, batch: Batch) -> Iterator[tuple[Tensors, float]]:
        """Gradients of the examples, then the canaries."""
        yield from super().single_gradients(model, batch)
        yield from ((canary, 0.0) for canary in self.canaries)


@dataclass(frozen=True)
class Replaced(LocalClient):
    """A client that sends a canary instead of what it has learned, for ``dp_client``."""

    canary: Tensors

    def gradient(
        self, model: nn.Module, batch: Batch, rng: torch.Generator
    ) -> tuple[Tensors, Tensors, float]:
        """The canary, twice, and no loss."""
        del model, batch, rng
        return self.canary, self.canary, 0.0
