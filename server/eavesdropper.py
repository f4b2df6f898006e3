"""The honest-but-curious server: any Flower strategy, plus a copy of what it receives.

In another Flower app it takes one line::

    strategy = Eavesdropper(FedAvg(...), "captures", model=model, tokenizer=tokenizer)

The strategy may also be one of ``flwr.server.strategy``, as apps of ``NumPyClient`` have it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from logging import INFO
from pathlib import Path
from typing import Any, TypeAlias

import numpy.typing as npt
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.common import FitIns, FitRes, Parameters, Scalar
from flwr.common.logger import log
from flwr.server.client_proxy import ClientProxy
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from fedsim.capture import CaptureKey, CaptureRecord, CaptureStore
from fedsim.cell import CaptureConfig
from fedsim.errors import ConfigError
from fedsim.files import digest, sync_file, write_bytes, write_json
from fedsim.knowledge import Knowledge
from fedsim.tasks.given import Model
from fedsim.tensor_bytes import halved, safetensors_parts
from fedsim.wire import ReplyFacts, arrays_of, view
from server.description import Description, claim
from server.wrapper import Wrapper

Arrays: TypeAlias = dict[str, npt.NDArray[Any]]


@dataclass(frozen=True, slots=True)
class _Reply:
    """One client's reply; its arrays share the memory of the message."""

    facts: ReplyFacts
    arrays: Arrays


def _say(line: str) -> None:
    log(INFO, "fedsim: %s", line)


def _data(record: ArrayRecord) -> dict[str, bytes]:
    return {name: array.data for name, array in record.items()}


def _numbered(parameters: Parameters) -> dict[str, bytes]:
    return {str(number): data for number, data in enumerate(parameters.tensors)}


def _views(data: dict[str, bytes]) -> Arrays:
    # Called before the writer's thread starts: numpy parses headers with ``ast``, which is not
    # thread-safe in CPython 3.11 (its issue 106905).
    return {name: view(value) for name, value in data.items()}


class Eavesdropper(Wrapper):
    """Stores the broadcast once a round and every reply, and passes the same messages on.

    Aggregation is bit for bit the same as without it. Files are written by a background thread
    while training goes on, with at most one round pending. They are synced at the end, in
    ``flush``: to wait for the disk after each file would take longer than a round of a small model.

    Args:
        inner: the strategy that configures rounds and aggregates.
        captures: folder to write to, in the format of ``fedsim.capture``. It belongs to one run: if
            it holds another run's captures, ``captures-2`` is used, and so on.
        policy: which rounds, clients and tensors to keep; all by default.
        on_round: called in the writer's thread with each round whose captures are written.
        overwrite: write into the folder whatever it holds.
        model: what is trained, so that the captures can be attacked without saying it again; as in
            ``fedsim.tasks.given.task_of``.
        **description: the other arguments of ``task_of``, such as ``tokenizer``.

    Raises:
        ConfigError: the model is described incompletely.
    """

    def __init__(
        self,
        inner: Strategy,
        captures: Path | str,
        policy: CaptureConfig | None = None,
        on_round: Callable[[int], None] | None = None,
        *,
        overwrite: bool = False,
        model: Model | None = None,
        **description: Any,  # noqa: ANN401
    ) -> None:
        super().__init__(inner)
        if not hasattr(inner, "configure_train") and not hasattr(inner, "configure_fit"):
            raise ConfigError(
                f"Eavesdropper: {type(inner).__name__} is no strategy of Flower. Pass the strategy "
                "that the app starts, such as FedAvg()."
            )
        self._asked, self._overwrite = Path(captures).absolute(), overwrite
        self._description = Description(model, description, _say)
        self.policy = policy or CaptureConfig()
        self.on_round = on_round
        self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="eavesdropper")
        self._pending: Future[None] | None = None
        self._sent: dict[str, bytes] = {}
        self._written: list[Path] = []

    @cached_property
    def store(self) -> CaptureStore:
        """The folder of this run, chosen when it is first used."""
        if self._overwrite:
            return CaptureStore(self._asked)
        folder = claim(self._asked)
        _say(f"captures of this run: {folder}")
        return CaptureStore(folder)

    def start(self, *args: Any, **kwargs: Any) -> Result:  # noqa: ANN401
        """Run all rounds, and return once the last capture is on disk."""
        try:
            return super().start(*args, **kwargs)
        finally:
            self.flush()

    def flush(self) -> None:
        """Wait until all captures so far are on disk; raises any exception of the writer."""
        self._wait()
        written, self._written = self._written, []
        for path in written:
            sync_file(path)

    def _wait(self) -> None:
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Keep the arrays of the first message, which are what is really sent."""
        messages = list(self.inner.configure_train(server_round, arrays, config, grid))
        if messages:
            self._sent = _data(arrays_of(messages[0]))
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Copy the replies, then aggregate: some strategies empty the messages."""
        replies = list(replies)
        if self.policy.keeps_round(server_round):
            self._keep(
                server_round,
                [
                    _Reply(ReplyFacts.read(message), _views(_data(arrays_of(message))))
                    for message in replies
                    if not message.has_error()
                ],
            )
        return self.inner.aggregate_train(server_round, replies)

    def configure_fit(self, *args: Any, **kwargs: Any) -> list[tuple[ClientProxy, FitIns]]:  # noqa: ANN401
        """As ``configure_train``, for a strategy of ``flwr.server.strategy``."""
        old: Any = self.inner
        instructions: list[tuple[ClientProxy, FitIns]] = old.configure_fit(*args, **kwargs)
        if instructions:
            self._sent = _numbered(instructions[0][1].parameters)
        return instructions

    def aggregate_fit(
        self, server_round: int, results: list[tuple[ClientProxy, FitRes]], failures: list[Any]
    ) -> tuple[Parameters | None, dict[str, Scalar]]:
        """As ``aggregate_train``; the captures of the round are on disk when it returns."""
        if self.policy.keeps_round(server_round):
            received = [
                _Reply(
                    ReplyFacts(int(proxy.cid), "weights", Knowledge(), result.num_examples),
                    _views(_numbered(result.parameters)),
                )
                for proxy, result in results
            ]
            self._keep(server_round, received)
        old: Any = self.inner
        try:
            return old.aggregate_fit(server_round, results, failures)  # type: ignore[no-any-return]
        finally:
            self.flush()  # no hook follows the last round

    def _keep(self, server_round: int, received: list[_Reply]) -> None:
        self._wait()
        kept = [
            _Reply(reply.facts, self._kept(reply.arrays))
            for reply in received
            if self.policy.keeps(server_round, reply.facts.client)
        ]
        sent = _views(self._sent)
        self._description.write(sent, self.store.root)
        self._pending = self._writer.submit(self._write, server_round, sent, kept)

    def _kept(self, arrays: Arrays) -> Arrays:
        found = {name: value for name, value in arrays.items() if self.policy.keeps_tensor(name)}
        if not found:
            raise ConfigError(
                f"capture.tensors: the clients send no tensor of {', '.join(self.policy.tensors)}. "
                f"Choose among {', '.join([*arrays][:4])} and so on."
            )
        return found

    def _write(self, round_: int, sent: Arrays, replies: list[_Reply]) -> None:
        parts = safetensors_parts(sent)
        sent_sha256 = digest(*parts)
        sent_path = self.store.sent_path(sent_sha256)
        if not sent_path.exists():
            write_bytes(sent_path, *parts, sync=False)
            self._written.append(sent_path)
        for reply in replies:
            key = CaptureKey(round=round_, client=reply.facts.client)
            arrays = reply.arrays
            if self.policy.dtype == "float16":
                arrays = {name: halved(array) for name, array in arrays.items()}
            parts = safetensors_parts(arrays)
            path = self.store.tensors_path(key)
            write_bytes(path, *parts, sync=False)
            record = CaptureRecord(
                key=key,
                kind=reply.facts.kind,
                order=tuple(reply.arrays),
                sha256=digest(*parts),
                bytes=sum(array.nbytes for array in arrays.values()),
                sent_sha256=sent_sha256,
                sent_order=tuple(sent),
                knowledge=reply.facts.knowledge,
                claimed_examples=reply.facts.claimed_examples,
            )
            write_json(path.with_suffix(".json"), record, sync=False, compact=True)
            self._written += [path, path.with_suffix(".json")]
        if self.on_round is not None:
            self.on_round(round_)
