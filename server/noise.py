"""Central DP: the server clips what it received, and covers the sum with noise. It saw all."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from fedsim.cell import CellConfig
from fedsim.defenses import build_chain
from fedsim.defenses.clip import cut
from fedsim.defenses.dp_server import DpServer
from fedsim.defenses.gaussian_noise import GaussianNoise
from fedsim.errors import ConfigError
from fedsim.seeds import generator
from fedsim.types import Tensors
from fedsim.wire import ReplyFacts, arrays_of, to_arrays, to_tensors
from server.wrapper import Wrapper


class Noise(Wrapper):
    """Clips each reply's update, and adds the noise of ``dp_server`` before they are averaged.

    The noise is added to one of the replies, scaled by its weight: in the weighted mean that is
    ``N(0, (noise_multiplier * clip * w)^2)``, ``w`` the largest weight, whatever is then made of
    the mean. An eavesdropper outside has copied the replies by then.

    Args:
        inner: a strategy that averages by numbers of examples.
        defense: clipping norm and noise.
        seed: of the experiment.
        parameters: names of what is clipped and covered; the rest are buffers.
    """

    def __init__(
        self, inner: Strategy, defense: DpServer, seed: int, parameters: Iterable[str]
    ) -> None:
        super().__init__(inner)
        self.defense = defense
        self.seed = seed
        self.parameters = frozenset(parameters)
        self._sent: Tensors = {}

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Note the global model."""
        self._sent = to_tensors(arrays)
        return self.inner.configure_train(server_round, arrays, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Aggregate the clipped replies and the noise."""
        replies = list(replies)
        counts = [_examples(message) for message in replies]
        rng = generator(self.seed, "server-noise", server_round)
        for position, message in enumerate(replies):
            std = self.defense.noise_multiplier * self.defense.clip * max(counts) / counts[position]
            self._cover(message, 0.0 if position else std, rng)
        return self.inner.aggregate_train(server_round, replies)

    def _cover(self, message: Message, std: float, rng: torch.Generator) -> None:
        """Put the clipped update, with noise, in the place of the message's arrays."""
        received = to_tensors(arrays_of(message))
        weights = ReplyFacts.read(message, 0).kind == "weights"
        names = [name for name in received if name in self.parameters]
        update = {k: self._sent[k] - received[k] if weights else received[k] for k in names}
        update = cut(update, self.defense.clip)
        if std:
            update = GaussianNoise(std=std).transform(update, rng)
        covered = {k: self._sent[k] - v if weights else v for k, v in update.items()}
        (place,) = message.content.array_records
        message.content[place] = to_arrays(received | covered)


def _examples(message: Message) -> int:
    metrics = next(iter(message.content.metric_records.values()))
    return int(str(metrics["num-examples"]))


def with_noise(inner: Strategy, config: CellConfig, parameters: Iterable[str]) -> Strategy:
    """The strategy with the noise that the cell's defense asks of the server, if it does.

    Raises:
        ConfigError: the strategy does not average.
    """
    for defense in build_chain(config.defense, "defense").defenses:
        if isinstance(defense, DpServer):
            if config.federation.strategy == "fedmedian":
                raise ConfigError(
                    "dp_server: strategy 'fedmedian' takes a median, and the noise is that of a "
                    "mean. Set federation.strategy to 'fedavg' or 'fedadam'."
                )
            inner = Noise(inner, defense, config.seed, parameters)
    return inner
