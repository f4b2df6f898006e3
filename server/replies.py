"""What crosses the wire, as the eavesdropper reads it: what a node is sent, and what it replies."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from flwr.app import ArrayRecord, Message
from flwr.common import FitIns, FitRes, Parameters
from flwr.server.client_proxy import ClientProxy

from fedsim.errors import StoreError
from fedsim.knowledge import Knowledge
from fedsim.reply_kind import cosine
from fedsim.store.capture import Kind, Setting, client_of
from fedsim.store.files import check_storable
from fedsim.wire import ReplyFacts, arrays_of, view, view_of
from server.stated_facts import stated

Arrays: TypeAlias = dict[str, npt.NDArray[Any]]
Config: TypeAlias = dict[str, Setting | list[Setting]]

_LARGEST = 16
"""Times the size of what was sent that a reply may have. SCAFFOLD in float64 takes four; half of it
would still hold that, and double lets one client fill the disk twice as fast."""
_SPARE = 2**20
_LONGEST = 64
"""Entries of a list in the server's configuration that are kept; a longer one holds no option."""


@dataclass(frozen=True, slots=True)
class Sent:
    """What the server sent to a node; the arrays share the memory of the message.

    Attributes:
        record: name of the array record that holds the model.
        arrays: the model.
        beside: other arrays, such as control variates, by ``<record>/<entry>``.
        config: the server's configuration.
    """

    record: str
    arrays: Arrays
    beside: Arrays = field(default_factory=dict)
    config: Config = field(default_factory=dict)

    @classmethod
    def of(cls, message: Message) -> Sent:
        """What a message of the server holds."""
        records = message.content.array_records
        if not records:
            raise StoreError("the server sends no array record, so there is nothing to overhear")
        name = next(iter(records))
        config: Config = {}
        for place, record in message.content.config_records.items():
            for key, value in record.items():
                config[key if key not in config else f"{place}/{key}"] = _setting(value)
        beside = {k: v for other in records if other != name for k, v in _inside(records, other)}
        return cls(name, _views(records[name]), beside, config)

    @classmethod
    def of_fit(cls, instruction: FitIns) -> Sent:
        """As ``of``, of a strategy of ``flwr.server.strategy``."""
        config = {key: _setting(value) for key, value in instruction.config.items()}
        return cls("", _numbered(instruction.parameters), {}, config)


@dataclass(frozen=True, slots=True)
class Reply:
    """One reply; its arrays share the memory of the message.

    Attributes:
        client: its number: of fedsim's own, what they state, else Flower's id of the node.
        kind: None if the arrays have to tell.
        knowledge: what the server knows.
        arrays: the update.
        sent: what the client started from.
        claimed_examples: as in ``CaptureRecord``.
        beside: what else the client sent.
        nodes: as in ``CaptureRecord``.
        metrics: as in ``CaptureRecord``.
    """

    client: int
    kind: Kind | None
    knowledge: Knowledge
    arrays: Arrays
    sent: Sent
    claimed_examples: int | None = None
    beside: Arrays = field(default_factory=dict)
    nodes: tuple[int, ...] = ()
    metrics: dict[str, Setting] = field(default_factory=dict)

    @classmethod
    def of_simulation(cls, message: Message, sent: Sent) -> Reply:
        """The reply of one of fedsim's own clients."""
        facts = ReplyFacts.read(message)
        return cls(facts.client, facts.kind, facts.knowledge, _views(arrays_of(message)), sent)

    @classmethod
    def of_stranger(cls, message: Message, sent: Mapping[int, Sent]) -> Reply:
        """The reply of another application's client, which states nothing that is believed.

        Raises:
            StoreError: it holds no arrays, or some that cannot be stored.
            Exception: whatever else a hostile message makes of it.
        """
        records = message.content.array_records
        start = _start(message.metadata.src_node_id, sent)
        name = _update_in(records, start)
        beside = {k: v for other in records if other != name for k, v in _inside(records, other)}
        claim, said = None, dict[str, Setting]()
        for place, metrics in message.content.metric_records.items():
            claim = claim or _count(metrics.get("num-examples"))
            beside |= _lists(place, metrics)
            said |= _said(metrics)
        for place, config in message.content.config_records.items():
            beside |= _lists(place, config)
        node = message.metadata.src_node_id
        return cls._checked(node, _views(records[name]), start, claim, beside, said)

    @classmethod
    def of_fit(cls, proxy: ClientProxy, result: FitRes, sent: Mapping[int, Sent]) -> Reply:
        """As ``of_stranger``, of a strategy of ``flwr.server.strategy``."""
        node = int(proxy.cid)
        arrays = _numbered(result.parameters)
        beside = _lists("metrics", result.metrics)
        claim, said = _count(result.num_examples), _said(result.metrics)
        return cls._checked(node, arrays, _start(node, sent), claim, beside, said)

    @classmethod
    def _checked(
        cls,
        node: int,
        arrays: Arrays,
        sent: Sent,
        claim: int | None,
        beside: Arrays,
        metrics: dict[str, Setting],
    ) -> Reply:
        every = {**beside, **arrays}
        check_storable(every)
        size = sum(len(name) + array.nbytes for name, array in every.items())
        if size > _SPARE + _LARGEST * sum(array.nbytes for array in sent.arrays.values()):
            raise StoreError(f"it has {size:,} bytes, over {_LARGEST} times what was sent")
        if not arrays:
            raise StoreError("it holds no array")
        others = {name: value for name, value in beside.items() if name not in arrays}
        facts = stated(sent.config)
        return cls(client_of(node), None, facts, arrays, sent, claim, others, metrics=metrics)


def _start(node: int, sent: Mapping[int, Sent]) -> Sent:
    if not 0 <= node < 2**64 or node not in sent:
        raise StoreError("nothing was sent to this node in this round")
    return sent[node]


def _update_in(records: Mapping[str, ArrayRecord], sent: Sent) -> str:
    """The record named as the model that was sent, else of its shapes, and the most like it."""
    if not records:
        raise StoreError("it holds no array record")
    if sent.record in records or len(records) == 1:
        return sent.record if sent.record in records else next(iter(records))
    shapes = [array.shape for array in sent.arrays.values()]
    read = {name: _views(record) for name, record in records.items()}
    alike = [n for n, arrays in read.items() if [a.shape for a in arrays.values()] == shapes]
    return max(alike or read, key=lambda name: cosine(sent.arrays, read[name]))


def _views(record: ArrayRecord) -> Arrays:
    # Never in the writer's thread: numpy parses headers with ``ast``, which is not thread-safe in
    # CPython 3.11 (its issue 106905).
    return {name: view_of(array) for name, array in record.items()}


def _numbered(parameters: Parameters) -> Arrays:
    return {str(number): view(data) for number, data in enumerate(parameters.tensors)}


def _inside(records: Mapping[str, ArrayRecord], name: str) -> list[tuple[str, npt.NDArray[Any]]]:
    return [(f"{name}/{entry}", value) for entry, value in _views(records[name]).items()]


def _lists(place: str, record: Mapping[str, Any]) -> Arrays:
    """The entries that are lists of numbers or bytes, as arrays."""
    arrays: Arrays = {}
    for key, value in record.items():
        if isinstance(value, bytes):
            arrays[f"{place}/{key}"] = np.frombuffer(value, np.uint8)
        elif isinstance(value, list) and value and isinstance(value[0], int | float):
            arrays[f"{place}/{key}"] = np.asarray(value, np.float64)
        elif isinstance(value, list) and value and isinstance(value[0], bytes):
            arrays[f"{place}/{key}"] = np.frombuffer(b"".join(value), np.uint8)
    return arrays


def _said(record: Mapping[str, Any]) -> dict[str, Setting]:
    """Single finite values and short words, the first of many."""
    known: dict[str, Setting] = {}
    for key, value in record.items():
        number = isinstance(value, bool | int) or (
            isinstance(value, float) and math.isfinite(value)
        )
        word = isinstance(value, str) and len(value) <= _LONGEST
        if (number or word) and len(key) <= _LONGEST and len(known) < _LONGEST:
            known[key] = value
    return known


def _count(value: object) -> int | None:
    """A claimed number of examples that could be one."""
    whole = isinstance(value, int | float) and not isinstance(value, bool) and 1 <= value < 2**31
    return int(value) if whole else None  # type: ignore[call-overload]


def _setting(value: Any) -> Setting | list[Setting]:  # noqa: ANN401
    if isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list) and len(value) <= _LONGEST:
        return [entry if isinstance(entry, bool | int | float) else str(entry) for entry in value]
    return f"{len(value):,} {'bytes' if isinstance(value, bytes) else 'entries'}"
