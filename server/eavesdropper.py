"""The honest-but-curious server: any Flower strategy, plus a copy of what it receives.

In somebody's own Flower app it is one line::

    strategy = Eavesdropper(FedAvg(...), "captures")
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from fedsim.capture import CaptureKey, CaptureRecord, CaptureStore
from fedsim.cell import CaptureConfig
from fedsim.files import digest, safetensors_parts, write_bytes, write_json
from fedsim.wire import ReplyFacts, arrays_of, view
from server.wrapper import Wrapper


class Eavesdropper(Wrapper):
    """Stores what was sent once a round and each reply, then hands the very same messages on.

    Aggregation is bit for bit what it is without it. Files are written by a background thread
    while the training goes on; at most one round is in flight.

    Args:
        inner: the strategy that does the work.
        captures: the folder to write to, see ``fedsim.capture``.
        policy: which rounds and clients to keep.
        on_round: called with the round when all its captures are on disk, in the writer's thread.
    """

    def __init__(
        self,
        inner: Strategy,
        captures: Path | str,
        policy: CaptureConfig | None = None,
        on_round: Callable[[int], None] | None = None,
    ) -> None:
        super().__init__(inner)
        self.store = CaptureStore(Path(captures))
        self.policy = policy or CaptureConfig()
        self.on_round = on_round
        self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="eavesdropper")
        self._pending: Future[None] | None = None
        self._sent = ArrayRecord()

    def start(self, *args: Any, **kwargs: Any) -> Result:  # noqa: ANN401
        """Run all rounds, and return when the last capture is on disk."""
        try:
            return super().start(*args, **kwargs)
        finally:
            self.flush()

    def flush(self) -> None:
        """Wait until all captures so far are on disk; raises what the writer raised."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Note what is really sent."""
        messages = list(self.inner.configure_train(server_round, arrays, config, grid))
        if messages:
            self._sent = arrays_of(messages[0]).copy()
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Copy the replies first: some strategies empty the messages while they aggregate."""
        replies = list(replies)
        if not self.policy.rounds or server_round in self.policy.rounds:
            self.flush()
            copies = [
                (ReplyFacts.read(message, position), arrays_of(message).copy())
                for position, message in enumerate(replies)
                if not message.has_error()
            ]
            kept = [
                copy
                for copy in copies
                if not self.policy.clients or copy[0].client in self.policy.clients
            ]
            self._pending = self._writer.submit(self._write, server_round, self._sent, kept)
        return self.inner.aggregate_train(server_round, replies)

    def _write(
        self, round_: int, sent: ArrayRecord, replies: list[tuple[ReplyFacts, ArrayRecord]]
    ) -> None:
        parts = safetensors_parts({name: view(array) for name, array in sent.items()})
        sent_sha256 = digest(*parts)
        if not self.store.sent_path(sent_sha256).exists():
            write_bytes(self.store.sent_path(sent_sha256), *parts)
        for facts, arrays in replies:
            key = CaptureKey(round=round_, client=facts.client)
            parts = safetensors_parts({name: view(array) for name, array in arrays.items()})
            path = self.store.tensors_path(key)
            write_bytes(path, *parts)
            record = CaptureRecord(
                key=key,
                kind=facts.kind,
                order=tuple(arrays),
                sha256=digest(*parts),
                bytes=sum(len(array.data) for array in arrays.values()),
                sent_sha256=sent_sha256,
                sent_order=tuple(sent),
                knowledge=facts.knowledge,
            )
            write_json(path.with_suffix(".json"), record)
        if self.on_round is not None:
            self.on_round(round_)
