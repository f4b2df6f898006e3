"""What an eavesdropper keeps of each round: noted as it is sent, written as it comes back."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from logging import INFO
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from flwr.app import Message
from flwr.common import FitIns, FitRes
from flwr.common.logger import log
from flwr.server.client_proxy import ClientProxy

from fedsim.config.build import suggest
from fedsim.config.cell import CaptureConfig
from fedsim.errors import ConfigError
from fedsim.knowledge import Fact, Knowledge
from fedsim.store.capture import CaptureStore, Kind
from fedsim.store.files import write_json
from server.capture_writer import CaptureWriter
from server.cohorts import pooled_equal
from server.description import Description, claim
from server.guest import Guest
from server.replies import Arrays, Reply, Sent

if TYPE_CHECKING:  # which imports torch
    from fedsim.tasks.given import Model

_PROTOCOL: frozenset[Fact] = frozenset(
    {"batch_size", "local_steps", "learning_rate", "optimizer", "train_mode"}
)
"""What the server of an application often knows without a client's word."""


def _say(line: str) -> None:
    log(INFO, "fedsim: %s", line)


class Recorder:
    """The captures of a run; its arguments are those of ``Eavesdropper``.

    Nothing that it does is felt by the application, see ``Guest``.

    Raises:
        ConfigError: the model is described incompletely, or there is no such kind.
    """

    def __init__(
        self,
        captures: Path | str,
        policy: CaptureConfig | None = None,
        on_round: Callable[[int], None] | None = None,
        *,
        overwrite: bool = False,
        kind: Kind | None = None,
        model: Model | None = None,
        **description: Any,  # noqa: ANN401
    ) -> None:
        if kind not in (None, *get_args(Kind)):
            raise ConfigError(f"kind: {kind!r} is none. {suggest(str(kind), get_args(Kind))}")
        self._asked, self._overwrite, self._kind = Path(captures), overwrite, kind
        self._description = Description(model, description, _say)
        if (description.get("input_shape") or description.get("image_shape")) and not (
            description.get("input_range")
        ):
            _say(
                "input_range is not given: attacks that search take inputs in [0, 1]. Where they "
                "are standardised, say so now: input_range=(-3, 3)"
            )
        self.policy = policy or CaptureConfig()
        self.on_round = on_round
        self._guest = Guest(strict=overwrite)
        self.sent: Mapping[int, Sent] = {}
        self._pools = False
        self._lacking = _PROTOCOL

    @cached_property
    def store(self) -> CaptureStore:
        """The folder of this run, chosen when it is first used."""
        if self._overwrite:
            return CaptureStore(self._asked.absolute())
        folder = claim(self._asked.absolute())
        _say(f"captures of this run: {folder}")
        return CaptureStore(folder)

    @cached_property
    def _writer(self) -> CaptureWriter:
        return CaptureWriter(self.store, self.on_round)

    def flush(self) -> None:
        """Wait until all captures so far are on disk; raises where other faults do."""
        if "_writer" in vars(self):
            self._guest.work(self._flush)

    def announce(self, *, wait: bool = True) -> None:
        """Call ``on_round`` with the round that was kept last, see ``CaptureWriter``."""
        if "_writer" in vars(self):
            self._guest.work(partial(self._writer.announce, wait=wait))

    def _flush(self) -> None:
        self._writer.flush()
        if counts := self._guest.left_out:
            write_json(self.store.root / CaptureStore.LEFT_OUT, dict(counts))

    def note(self, server_round: int, messages: Sequence[Message]) -> None:
        """Keep what is really sent to each node."""
        self.sent = self.read(messages) if self.policy.keeps_round(server_round) else {}

    def read(self, messages: Sequence[Message]) -> dict[int, Sent]:
        """What is really sent, by node; it shares the memory of the messages."""
        return self._guest.work(_read, messages) or {}

    def overhear(self, server_round: int, replies: Sequence[Message]) -> None:
        """Keep the replies to what is in ``sent``."""
        self._guest.work(self._overhear, server_round, replies)

    def _overhear(self, server_round: int, replies: Sequence[Message]) -> None:
        if not self.policy.keeps_round(server_round):
            return
        answers = [message for message in replies if not message.has_error()]
        if self._overwrite:
            sent = next(iter(self.sent.values()))  # all are sent the same
            self._keep(server_round, [Reply.of_simulation(each, sent) for each in answers])
            return
        named = [(each.metadata.src_node_id, each) for each in answers]
        self._of_strangers(server_round, Reply.of_stranger, named)

    def note_fit(self, instructions: Sequence[tuple[ClientProxy, FitIns]]) -> None:
        """As ``note``, of a strategy of ``flwr.server.strategy``."""
        self._guest.work(self._note_fit, instructions)

    def _note_fit(self, instructions: Sequence[tuple[ClientProxy, FitIns]]) -> None:
        equal: dict[int, Sent] = {}
        for _, each in instructions:
            if id(each) not in equal:
                equal[id(each)] = Sent.of_fit(each)
        self.sent = {int(proxy.cid): equal[id(each)] for proxy, each in instructions}

    def overhear_fit(
        self, server_round: int, results: Sequence[tuple[ClientProxy, FitRes]]
    ) -> None:
        """As ``overhear``, of a strategy of ``flwr.server.strategy``."""
        named = [(proxy.cid, proxy, result) for proxy, result in results]
        self._guest.work(self._of_strangers, server_round, Reply.of_fit, named)

    def _of_strangers(
        self, server_round: int, parse: Callable[..., Reply], named: Sequence[tuple[Any, ...]]
    ) -> None:
        """Keep the first readable reply of each node, equal ones as one of a cohort."""
        if not self.policy.keeps_round(server_round):
            return
        first: dict[int, Reply] = {}
        for node, *raw in named:
            if (reply := self._guest.read(node, parse, *raw, self.sent)) is not None:
                first.setdefault(reply.client, replace(reply, kind=self._kind))
        replies = pooled_equal(list(first.values()))
        if len(replies) < len(first) and not self._pools:
            self._pools = True
            _say(
                "several nodes reply with the same bytes, as under secure aggregation: each sum is "
                "captured once, as a cohort's"
            )
        self._keep(server_round, replies)

    def _keep(self, server_round: int, replies: Sequence[Reply]) -> None:
        selected = [
            replace(reply, arrays=self._selected(reply.arrays))
            for reply in replies
            if any(self.policy.keeps(server_round, n) for n in (reply.client, *reply.nodes))
        ]
        if self.sent:
            self._description.write(next(iter(self.sent.values())).arrays, self.store.root)
        self._writer.submit(server_round, selected)
        if selected and not self._overwrite:
            self._ask(selected[0].knowledge)

    def _ask(self, known: Knowledge) -> None:
        """Once: name the facts that attacks will lack."""
        missing, self._lacking = known.missing(self._lacking), frozenset()
        if missing:
            _say(
                f"the server's configuration does not state {', '.join(missing)}. Where it knows "
                "them, say so later: fedsim attack ... --knows FACT=VALUE"
            )

    def _selected(self, arrays: Arrays) -> Arrays:
        chosen = {name: value for name, value in arrays.items() if self.policy.keeps_tensor(name)}
        if not chosen:
            raise ConfigError(
                f"capture.tensors: the clients send no tensor of {', '.join(self.policy.tensors)}. "
                f"Choose among {', '.join([*arrays][:4])} and so on."
            )
        return chosen


def _read(messages: Sequence[Message]) -> dict[int, Sent]:
    same = {tuple(map(id, m.content.values())): m for m in messages}  # mostly one for everyone
    equal = {records: Sent.of(message) for records, message in same.items()}
    return {m.metadata.dst_node_id: equal[tuple(map(id, m.content.values()))] for m in messages}
