"""Base of the Flower strategies that wrap another one."""

from typing import Any

from flwr.serverapp.strategy import Strategy


class Wrapper(Strategy):
    """Passes every call on to ``inner``; subclasses hook into the rounds of training."""

    def __init__(self, inner: Any) -> None:  # noqa: ANN401
        self.inner: Strategy = inner

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        if name == "inner":  # copy and pickle look it up before __init__ has run
            raise AttributeError(name)
        return getattr(self.inner, name)

    def summary(self) -> None:
        """Log the settings of the inner strategy."""
        self.inner.summary()

    def configure_evaluate(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        """The inner strategy's messages."""
        return self.inner.configure_evaluate(*args, **kwargs)

    def aggregate_evaluate(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        """The inner strategy's aggregate."""
        return self.inner.aggregate_evaluate(*args, **kwargs)
