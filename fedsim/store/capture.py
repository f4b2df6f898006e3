"""Observations of the curious server, and their files on disk.

``captures/`` is self-contained: it also holds the task, the tokenizer and the auxiliary rows that
the threat model grants, so the folder can be copied to another machine and attacked there.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal, TypeAlias, TypeVar

from pydantic import Field

from fedsim.errors import StoreError
from fedsim.knowledge import Knowledge
from fedsim.store.files import Record, Sealed, load_tensors, read_record

if TYPE_CHECKING:  # which imports torch
    from fedsim.types import Batch, Tensors

Kind: TypeAlias = Literal["weights", "difference", "pseudo-gradient", "gradient"]
"""What a reply holds: trained weights, these less what was sent, what was sent less these (Reddi et
al. 2021), or the gradient of a loss. Of the last alone the scale is known."""
Setting: TypeAlias = bool | int | float | str
_NAME = re.compile(r"round-(\d+)[-/]client-(\d+)")


def client_of(node: int) -> int:
    """The number of Flower's node: its id without the highest of 64 bits.

    SQLite and Parquet hold signed integers, and half of all ids are greater.
    """
    return node & (2**63 - 1)


class CaptureKey(Record):
    """One client in one round; rounds count from 1.

    Clients count from 0, or have Flower's node id in another application, see ``client_of``.
    """

    round: int
    client: int

    def __str__(self) -> str:
        return f"round-{self.round:04d}-client-{self.client:04d}"

    def __lt__(self, other: CaptureKey) -> bool:
        return (self.round, self.client) < (other.round, other.client)

    def __hash__(self) -> int:
        return hash((self.round, self.client))

    @classmethod
    def parse(cls, text: str) -> CaptureKey:
        """Read the form ``round-0001-client-0003``.

        Raises:
            StoreError: the text does not have this form.
        """
        match = _NAME.fullmatch(text)
        if match is None:
            raise StoreError(f"{text!r} does not name a capture. Write round-0001-client-0003.")
        return cls(round=int(match[1]), client=int(match[2]))


class Keyed(Record):
    """A record of one client in one round, whose file is named after it."""

    key: CaptureKey


K = TypeVar("K", bound=Keyed)


def read_keyed(path: Path, kind: type[K], key: CaptureKey) -> K:
    """Read the record of ``key``.

    Raises:
        StoreError: the file is missing, is not a valid record, or holds that of another key.
    """
    record = read_record(path, kind)
    if record.key != key:
        raise StoreError(
            f"{path}: holds the record of {record.key}. Files were swapped; restore them, or rerun "
            "the stage that wrote them."
        )
    return record


class CaptureRecord(Keyed, Sealed):
    """Metadata of one reply. It is written last: a capture without its record does not exist.

    Attributes:
        kind: ``gradient`` (FedSGD) or ``weights`` (FedAvg); of another application's reply, as
            ``fedsim.reply_kind`` tells it or its owner says.
        order: names of the received tensors in the order of the message; safetensors sorts names.
        sha256: hash of the file of received tensors.
        bytes: size of the kept tensors.
        sent_sha256: hash of the broadcast parameters, which is also their file name in ``models/``.
        sent_order: names of the broadcast tensors in the order of the message.
        knowledge: the facts granted to the server about this reply.
        claimed_examples: the ``num-examples`` that a client of another application stated, which
            may count batches; None in fedsim's own.
        beside: names of what else another application's client sent and the file of tensors holds,
            ``<record>/<entry>``.
        config: what another application's server sent beside the weights.
        nodes: the nodes that all sent these very bytes, hence the sum of a cohort under secure
            aggregation; empty otherwise.
        sign_open: whether the numbers, which alone told the kind, leave the sign open.
        doubt: why another application's reply may hold something else than its model explains.
        metrics: single values that another application's client stated beside the arrays, which
            nobody believes.
    """

    kind: Kind
    order: tuple[str, ...]
    sha256: str
    bytes: int
    sent_sha256: str
    sent_order: tuple[str, ...]
    knowledge: Knowledge
    claimed_examples: int | None = None
    beside: tuple[str, ...] = ()
    config: dict[str, Setting | list[Setting]] = Field(default_factory=dict)
    nodes: tuple[int, ...] = ()
    sign_open: bool = False
    doubt: str = ""
    metrics: dict[str, Setting] = Field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Observation:
    """Everything that an attack may see of one client in one round.

    Attributes:
        sent: parameters and buffers that the server broadcast.
        received: the reply as it crossed the wire, in the wire's dtype, or what ``[capture]`` keeps
            of it; frozen parameters are absent.
        kind: what ``received`` holds.
        knowledge: the facts that the threat model grants.

    Example:
        >>> import torch
        >>> from fedsim.store.capture import CaptureKey, Observation
        >>> from fedsim.knowledge import Knowledge

    if TYPE_CHECKING:  # which imports torch
    from fedsim.types import Batch, Tensors
        >>> seen = Observation(
        ...     key=CaptureKey(round=1, client=3),
        ...     sent={"weight": torch.tensor([1.0, 2.0])},
        ...     received={"weight": torch.tensor([0.5, 2.5])},
        ...     kind="weights",
        ...     knowledge=Knowledge(num_examples=1),
        ... )
        >>> seen.update()["weight"].tolist()
        [0.5, -0.5]
    """

    key: CaptureKey
    sent: Tensors
    received: Tensors
    kind: Kind
    knowledge: Knowledge

    def with_reply_of(self, donor: Observation) -> Observation:
        """The same victim and granted facts with the reply of another client.

        Trained weights say something only beside the model that they started from, so that they are
        moved by the difference of the two models, which is 0 within a round.
        """
        received = donor.received
        if self.kind == "weights":
            received = {
                name: value + (self.sent[name] - donor.sent[name]).to(value.dtype)
                if value.is_floating_point() and name in self.sent
                else value
                for name, value in received.items()
            }
        return replace(self, received=received)

    def update(self, names: Collection[str | None] | None = None) -> Tensors:
        """Descent direction in float64: the gradient, or what was sent less the trained weights.

        After k steps of plain SGD with learning rate ``eta``

            sent - received = eta (g_1 + ... + g_k),

        g_j being the gradient at the weights before step j, so one step gives ``eta * gradient``.
        Integer buffers are left out, and of weights what was not sent.

        Args:
            names: tensors to return; None for all. Float64 doubles the memory of a large model.
        """
        received = {
            name: value.double()
            for name, value in self.received.items()
            if value.is_floating_point() and (names is None or name in names)
        }
        if self.kind == "weights":
            pairs = {name: value for name, value in received.items() if name in self.sent}
            return {name: self.sent[name].double() - value for name, value in pairs.items()}
        if self.kind == "difference":
            return {name: -value for name, value in received.items()}
        return received


@dataclass(frozen=True)
class CaptureStore:
    """The ``captures/`` folder of one cell: what the server saw, and nothing else.

    The folder may also be given as a string.

    - ``round-0001/client-0003.safetensors`` and ``.json``: a reply's tensors and its record.
    - ``models/<sha256>.safetensors``: broadcast parameters; equal models are stored once.
    - ``task.json``, ``tokenizer/`` and, if granted, ``auxiliary.safetensors``.
    - ``candidates.safetensors``, if a membership attack is to choose among rows.
    - ``run.json``, ``base.safetensors`` and ``left_out.json``, of another application: which run it
      was, the weights that never cross the wire, and why how many replies could not be read.

    Example:
        List what a folder holds, ``runs/quickstart/<cell>/captures`` for one:

        >>> from fedsim.store.capture import CaptureStore
        >>> list(CaptureStore("captures").keys())
        []
    """

    BASE: ClassVar[str] = "base.safetensors"
    LEFT_OUT: ClassVar[str] = "left_out.json"

    root: Path

    def __init__(self, root: Path | str) -> None:
        object.__setattr__(self, "root", Path(root))

    def tensors_path(self, key: CaptureKey) -> Path:
        """Path of the received tensors of ``key``; its record has the same name with ``.json``."""
        return self.root / f"round-{key.round:04d}" / f"client-{key.client:04d}.safetensors"

    def sent_path(self, sha256: str) -> Path:
        """Path of the broadcast parameters with this hash; equal models are stored once."""
        return self.root / "models" / f"{sha256}.safetensors"

    def keys(self) -> list[CaptureKey]:
        """All captures, sorted by round and client."""
        return sorted(self._keys())

    def _keys(self) -> Iterator[CaptureKey]:
        for path in self.root.glob("round-*/client-*.json"):
            yield CaptureKey.parse(f"{path.parent.name}-{path.stem}")

    def record(self, key: CaptureKey) -> CaptureRecord:
        """Record of ``key``, without its tensors."""
        return read_keyed(self.tensors_path(key).with_suffix(".json"), CaptureRecord, key)

    def load(self, key: CaptureKey | str) -> Observation:
        """Read one observation and check every file against its hash.

        Args:
            key: as ``keys`` lists it, or in the form ``round-0001-client-0003``.

        Raises:
            StoreError: a file is missing, cut or altered, or the text names no capture.
        """
        key = CaptureKey.parse(key) if isinstance(key, str) else key
        record = self.record(key)
        sent = load_tensors(
            self.sent_path(record.sent_sha256), record.sent_sha256, record.sent_order
        )
        received = load_tensors(self.tensors_path(key), record.sha256, record.order)
        return Observation(key, sent, received, record.kind, record.knowledge)

    def beside(self, key: CaptureKey) -> tuple[Tensors, Tensors]:
        """What else was sent and received, by ``<record>/<entry>``, each sorted by name.

        Raises:
            StoreError: as ``load``.
        """
        record = self.record(key)
        sent = load_tensors(self.sent_path(record.sent_sha256), record.sent_sha256)
        received = load_tensors(self.tensors_path(key), record.sha256, record.beside)
        return (
            {name: value for name, value in sent.items() if name not in record.sent_order},
            {name: received[name] for name in record.beside},
        )

    def auxiliary(self) -> Batch:
        """Public rows that the attacker owns; they share no row with the private ones."""
        return batch_from(load_tensors(self.root / "auxiliary.safetensors"))

    def candidates(self) -> Batch | None:
        """Rows that may or may not have been used; None if the experiment names none."""
        path = self.root / "candidates.safetensors"
        return batch_from(load_tensors(path)) if path.exists() else None


def batch_from(tensors: Tensors) -> Batch:
    """Batch from the tensors ``inputs``, ``labels`` and, for text, ``mask`` and ``types``."""
    from fedsim.types import Batch

    return Batch(tensors["inputs"], tensors["labels"], tensors.get("mask"), tensors.get("types"))


def batch_tensors(batch: Batch) -> Tensors:
    """Tensors of a batch by name; the inverse of ``batch_from``."""
    tensors = {"inputs": batch.inputs, "labels": batch.labels}
    more = {"mask": batch.mask, "types": batch.types}
    return tensors | {name: value for name, value in more.items() if value is not None}
