"""Central differential privacy: the server clips the updates and adds noise to their mean."""

from collections.abc import Iterable

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from fedsim.config.cell import CellConfig
from fedsim.defenses import build_chain
from fedsim.defenses.base import Gaussian
from fedsim.defenses.gaussian_noise import GaussianNoise
from fedsim.errors import ConfigError
from fedsim.magnitudes import cut
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
        seed: seed of the experiment.
        parameters: names of the tensors that are clipped; all others are buffers.
    """

    def __init__(
        self, inner: Strategy, noise: Gaussian, seed: int, parameters: Iterable[str]
    ) -> None:
        super().__init__(inner)
        self.noise = noise
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
        for position, message in enumerate(replies):
            std = (self.noise.std or 0.0) * max(counts) / counts[position]
            self._cover(message, 0.0 if position else std, rng)
        return self.inner.aggregate_train(server_round, replies)

    def _cover(self, message: Message, std: float, rng: torch.Generator) -> None:
        """Replace the message's arrays by those of the clipped update with noise."""
        received = to_tensors(arrays_of(message))
        weights = ReplyFacts.read(message).kind == "weights"
        names = [name for name in received if name in self.parameters]
        update = {k: self._sent[k] - received[k] if weights else received[k] for k in names}
        update = cut(update, self.noise.clip)
        if std:
            update = GaussianNoise(std=std).transform(update, rng)
        covered = {k: self._sent[k] - v if weights else v for k, v in update.items()}
        (place,) = message.content.array_records
        message.content[place] = to_arrays(received | covered)


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
            inner = ServerNoise(inner, noise, config.seed, parameters)
    return inner
