"""Update of the global model from what the clients sent."""

from collections.abc import Iterable

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvgM, Strategy
from flwr.serverapp.strategy.fedopt import FedOpt

from fedsim.wire import arrays_of
from server.wrapper import Wrapper


class KeepMissing(Wrapper):
    """Merges the aggregate into the global model, keeping absent tensors and every dtype.

    Flower's strategies return only the tensors in the replies, so a frozen embedding would vanish
    from the next broadcast, and they turn integer buffers into floats. With learning rate eta the
    new weights are ``w + eta (aggregate - w)``.

    Args:
        inner: the strategy that averages.
        learning_rate: step on the aggregated update; 1 takes the aggregate itself.
    """

    _sent: ArrayRecord

    def __init__(self, inner: Strategy, learning_rate: float = 1.0) -> None:
        super().__init__(inner)
        self.learning_rate = learning_rate

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Keep the global model for the merge."""
        self._sent = arrays.copy()
        return self.inner.configure_train(server_round, arrays, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Aggregate, then merge the aggregate into the global model."""
        replies = list(replies)
        # Both expect an update of every tensor they know, in the order of the replies.
        if isinstance(self.inner, FedOpt) and replies:
            names = arrays_of(replies[0])
            self.inner.current_arrays = {name: self._sent[name].numpy() for name in names}
        elif isinstance(self.inner, FedAvgM) and replies:
            names = arrays_of(replies[0])
            self.inner.current_arrays = ArrayRecord({name: self._sent[name] for name in names})
        aggregate, metrics = self.inner.aggregate_train(server_round, replies)
        return (None if aggregate is None else self._merge(aggregate)), metrics

    def _merge(self, aggregate: ArrayRecord) -> ArrayRecord:
        merged = {}
        for name, old in self._sent.items():
            if name not in aggregate:
                merged[name] = old
                continue
            value = aggregate[name].numpy()
            if self.learning_rate != 1.0 and np.issubdtype(np.dtype(old.dtype), np.floating):
                value = old.numpy() + self.learning_rate * (value - old.numpy())
            merged[name] = _as(value, old)
        return ArrayRecord(merged)


class FedSGD(KeepMissing):
    """Takes a gradient step, ``w <- w - learning_rate * mean gradient``; buffers are averaged.

    The inner strategy averages the gradients with weights ``n_k / sum n``, the clients' numbers of
    examples (FedSGD, McMahan et al. 2017, section 2).

    Args:
        inner: the strategy that averages.
        learning_rate: step on the mean gradient.
        parameters: names of the tensors that take the step; all others are buffers.
    """

    def __init__(self, inner: Strategy, learning_rate: float, parameters: Iterable[str]) -> None:
        super().__init__(inner, learning_rate)
        self.parameters = frozenset(parameters)

    def _merge(self, aggregate: ArrayRecord) -> ArrayRecord:
        merged = {}
        for name, old in self._sent.items():
            if name not in aggregate:
                merged[name] = old
            elif name in self.parameters:
                step = np.asarray(self.learning_rate, old.dtype) * aggregate[name].numpy()
                merged[name] = _as(old.numpy() - step, old)
            else:
                merged[name] = _as(aggregate[name].numpy(), old)
        return ArrayRecord(merged)


def _as(value: np.ndarray[tuple[int, ...], np.dtype[np.generic]], like: Array) -> Array:
    return Array(np.asarray(value).astype(like.dtype))
