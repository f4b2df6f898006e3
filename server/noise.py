"""Central differential privacy: the server clips the updates and adds noise to their mean."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from fedsim.cell import CellConfig
from fedsim.defenses import build_chain
from fedsim.defenses.base import Following, Gaussian
from fedsim.defenses.gaussian_noise import GaussianNoise
from fedsim.errors import ConfigError
from fedsim.magnitudes import cut, squared_norm
from fedsim.seeds import generator
from fedsim.types import Tensors
from fedsim.wire import ReplyFacts, arrays_of, to_arrays, to_tensors
from server.wrapper import Wrapper


class ServerNoise(Wrapper):
    """Clips each reply's update and adds the noise of ``dp_server`` before they are averaged.

    The noise is added to one reply, divided by its weight, so the weighted mean carries
    ``N(0, (noise_multiplier * clip * w)^2)``, with w the largest weight, whatever happens to the
    mean afterwards. An eavesdropper around this strategy has copied the replies before.

    Args:
        inner: a strategy that averages with the numbers of examples as weights.
        noise: clipping norm, and standard deviation for the largest weight of 1.
        follows: the quantile of the updates' lengths that the norm follows; None if it is fixed.
        seed: seed of the experiment.
        parameters: names of the tensors that are clipped; all others are buffers.
    """

    def __init__(
        self,
        inner: Strategy,
        noise: Gaussian,
        seed: int,
        parameters: Iterable[str],
        follows: Following | None = None,
    ) -> None:
        super().__init__(inner)
        self.noise = noise
        self.follows = follows
        self.seed = seed
        self.parameters = frozenset(parameters)
        self._sent: Tensors = {}

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Keep the global model, from which updates are computed."""
        self._sent = to_tensors(arrays)
        return self.inner.configure_train(server_round, arrays, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Aggregate the clipped replies and the noise."""
        replies = list(replies)
        counts = [_examples(message) for message in replies]
        rng = generator(self.seed, "server-noise", server_round)
        short = 0
        for position, message in enumerate(replies):
            std = (self.noise.std or 0.0) * max(counts) / counts[position]
            short += self._cover(message, 0.0 if position else std, rng)
        if self.follows is not None and replies:
            self._follow(short, len(replies), rng)
        return self.inner.aggregate_train(server_round, replies)

    def _follow(self, short: int, of: int, rng: torch.Generator) -> None:
        """Move the norm, and the noise with it, after a round with so many updates below it."""
        assert self.follows is not None
        drawn = float(torch.randn((), generator=rng, dtype=torch.float64))
        share = (short + self.follows.count_std * drawn) / of
        factor = math.exp(-self.follows.rate * (share - self.follows.quantile))
        std = None if self.noise.std is None else self.noise.std * factor
        self.noise = replace(self.noise, std=std, clip=self.noise.clip * factor)

    def _cover(self, message: Message, std: float, rng: torch.Generator) -> bool:
        """Replace the message's arrays by those of the clipped update with noise.

        Returns:
            Whether the update was no longer than the norm.
        """
        received = to_tensors(arrays_of(message))
        weights = ReplyFacts.read(message).kind == "weights"
        names = [name for name in received if name in self.parameters]
        update = {k: self._sent[k] - received[k] if weights else received[k] for k in names}
        short = bool(squared_norm(update) <= self.noise.clip**2)
        update = cut(update, self.noise.clip)
        if std:
            update = GaussianNoise(std=std).transform(update, rng)
        covered = {k: self._sent[k] - v if weights else v for k, v in update.items()}
        (place,) = message.content.array_records
        message.content[place] = to_arrays(received | covered)
        return short


def _examples(message: Message) -> int:
    metrics = next(iter(message.content.metric_records.values()))
    return int(str(metrics["num-examples"]))


def with_noise(inner: Strategy, config: CellConfig, parameters: Iterable[str]) -> Strategy:
    """The strategy, with noise if the cell's defense asks the server to add it.

    Raises:
        ConfigError: the strategy does not average.
    """
    for defense in build_chain(config.defense, "defense").defenses:
        if (noise := defense.at_server) is not None:
            if not config.federation.averages:
                raise ConfigError(
                    f"dp_server: strategy {config.federation.strategy!r} takes no mean, for which "
                    "the noise is scaled. Set federation.strategy to 'fedavg' or 'fedadam'."
                )
            inner = ServerNoise(inner, noise, config.seed, parameters, defense.server_follows)
    return inner
