"""Base of the Flower strategies that wrap another one."""

from collections.abc import Iterable
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy


class Wrapper(Strategy):
    """Passes every call on to ``inner``; subclasses add to some of the hooks."""

    def __init__(self, inner: Any) -> None:  # noqa: ANN401
        self.inner: Strategy = inner

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        if name == "inner":  # copy and pickle look it up before __init__ has run
            raise AttributeError(name)
        return getattr(self.inner, name)

    def summary(self) -> None:
        """Log the settings of the inner strategy."""
        self.inner.summary()

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """The inner strategy's messages."""
        return self.inner.configure_train(server_round, arrays, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """The inner strategy's aggregate."""
        return self.inner.aggregate_train(server_round, replies)

    def configure_evaluate(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        """The inner strategy's messages."""
        return self.inner.configure_evaluate(*args, **kwargs)

    def aggregate_evaluate(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        """The inner strategy's aggregate."""
        return self.inner.aggregate_evaluate(*args, **kwargs)
