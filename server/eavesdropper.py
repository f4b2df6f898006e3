"""The honest-but-curious server: any Flower strategy, plus a copy of what it receives.

In another Flower app it takes one line::

    strategy = Eavesdropper(FedAvg(...), "captures", model=model, tokenizer=tokenizer)

The strategy may also be one of ``flwr.server.strategy``, as apps of ``NumPyClient`` have it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.common import FitIns, FitRes, Parameters, Scalar
from flwr.server.client_proxy import ClientProxy
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from fedsim.config.cell import CaptureConfig
from fedsim.errors import ConfigError
from fedsim.store.capture import CaptureStore, Kind
from server.recorder import Recorder
from server.wrapper import Wrapper

if TYPE_CHECKING:  # which imports torch
    from fedsim.tasks.given import Model


class Eavesdropper(Wrapper):
    """Stores what each client is sent and replies, and passes the same messages on.

    Aggregation is bit for bit the same as without it. In another application it is a guest: its
    first fault, such as a full disk, is logged and ends the capturing, a reply that cannot be read
    is left out and counted, and the training goes on. What fedsim's own clients state about
    themselves is then ignored: a client is Flower's node id.

    Args:
        inner: the strategy that configures rounds and aggregates.
        captures: folder to write to, in the format of ``fedsim.store.capture``. It belongs to one
            run: if it holds another run's captures, ``captures-2`` is used, and so on.
        policy: which rounds, clients and tensors to keep; all by default.
        on_round: called with each round whose captures are written, in the thread that trains:
            before the next round, or, where the writing takes longer, after it.
        overwrite: for fedsim's own simulations, whose clients state what they send: the folder is
            written whatever it holds, and every fault ends the run, as no number may stand for one.
        kind: what the clients reply with, ``weights``, ``difference`` (these less what was sent),
            ``pseudo-gradient`` (the other way round) or ``gradient``; if None, the numbers tell.
        model: what is trained, so that the captures can be attacked without saying it again; as in
            ``fedsim.tasks.given.task_of``.
        **description: the other arguments of ``task_of``, such as ``tokenizer``.

    Raises:
        ConfigError: the model is described incompletely, or there is no such kind.

    Example:
        >>> import tempfile
        >>> import torch
        >>> from flwr.serverapp.strategy import FedAvg
        >>> from server.eavesdropper import Eavesdropper
        >>> net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 4))
        >>> strategy = Eavesdropper(FedAvg(), tempfile.mkdtemp())
    """

    def __init__(
        self,
        inner: Strategy,
        captures: Path | str,
        policy: CaptureConfig | None = None,
        on_round: Callable[[int], None] | None = None,
        *,
        overwrite: bool = False,
        kind: Kind | None = None,
        model: Model | None = None,
        **description: Any,  # noqa: ANN401
    ) -> None:
        super().__init__(inner)
        if not hasattr(inner, "configure_train") and not hasattr(inner, "configure_fit"):
            raise ConfigError(
                f"Eavesdropper: {type(inner).__name__} is no strategy of Flower. Pass the strategy "
                "that the app starts, such as FedAvg(); an app with a loop of its own has none, "
                "and takes grid = fedsim.tap(grid, FOLDER)."
            )
        self._recorder = Recorder(
            captures, policy, on_round, overwrite=overwrite, kind=kind, model=model, **description
        )

    @property
    def store(self) -> CaptureStore:
        """The folder of this run, chosen when it is first used."""
        return self._recorder.store

    def start(self, *args: Any, **kwargs: Any) -> Result:  # noqa: ANN401
        """Run all rounds, and return once the last capture is on disk."""
        try:
            result = super().start(*args, **kwargs)
            self._recorder.announce()
            return result
        finally:
            self.flush()

    def flush(self) -> None:
        """Wait until all captures so far are on disk; raises where other faults do."""
        self._recorder.flush()

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Keep what is really sent to each node."""
        self._recorder.announce(wait=False)
        messages = list(self.inner.configure_train(server_round, arrays, config, grid))
        self._recorder.note(server_round, messages)
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Copy the replies, then aggregate: some strategies empty the messages."""
        replies = list(replies)
        self._recorder.overhear(server_round, replies)
        return self.inner.aggregate_train(server_round, replies)

    def configure_fit(self, *args: Any, **kwargs: Any) -> list[tuple[ClientProxy, FitIns]]:  # noqa: ANN401
        """As ``configure_train``, for a strategy of ``flwr.server.strategy``."""
        old: Any = self.inner
        instructions: list[tuple[ClientProxy, FitIns]] = old.configure_fit(*args, **kwargs)
        self._recorder.note_fit(instructions)
        return instructions

    def aggregate_fit(
        self, server_round: int, results: list[tuple[ClientProxy, FitRes]], failures: list[Any]
    ) -> tuple[Parameters | None, dict[str, Scalar]]:
        """As ``aggregate_train``; the captures of the round are on disk when it returns."""
        self._recorder.overhear_fit(server_round, results)
        old: Any = self.inner
        try:
            aggregated: tuple[Parameters | None, dict[str, Scalar]]
            aggregated = old.aggregate_fit(server_round, results, failures)
            self._recorder.announce()
            return aggregated
        finally:
            self.flush()  # no hook follows the last round
