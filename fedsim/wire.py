"""Content of the Flower messages; no other module knows the names inside them.

The server sends the parameters as an ``ArrayRecord`` and the round as ``config["server-round"]``. A
client replies with its tensors (``arrays``), with its number, its number of examples and its loss
(``metrics``), and with the kind of its tensors and the granted facts as JSON (``update``). A fact
that the threat model withholds is never part of a message.
"""

from __future__ import annotations

import io
import math
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from numpy.lib import format as npy

from fedsim.knowledge import Knowledge
from fedsim.store.capture import Kind

if TYPE_CHECKING:  # which imports torch, and a tap has to do without
    from fedsim.types import Tensors

ARRAYS, METRICS, UPDATE = "arrays", "metrics", "update"
_BFLOAT16 = np.dtype("V2")
PARTITION, WHOAMI = "partition-id", "query.whoami"


def to_arrays(tensors: Tensors) -> ArrayRecord:
    """Tensors as Flower arrays of the same dtype."""
    return ArrayRecord(
        {name: Array(value.detach().cpu().numpy()) for name, value in tensors.items()}
    )


def view(data: bytes) -> npt.NDArray[Any]:
    """Read-only view of an array's memory, without a copy.

    Args:
        data: of a Flower array. It holds a .npy file: a magic string, a version, the length of the
            header, the header and the values.
    """
    size = 2 if data[6] == 1 else 4  # bytes that hold the header's length, by version
    end = 8 + size + int.from_bytes(data[8 : 8 + size], "little")
    shape, fortran, dtype = _parse_header(data[:end])
    flat = np.frombuffer(data, dtype=dtype, offset=end)
    return _known(flat).reshape(shape, order="F" if fortran else "C")


def view_of(array: Array) -> npt.NDArray[Any]:
    """As ``view``, of a Flower array that may hold bare numbers as well, as of ``torch.bfloat16``.

    Raises:
        Exception: it holds neither a .npy file nor as many numbers as it says.
    """
    if array.data.startswith(npy.MAGIC_PREFIX):
        return view(array.data)
    name = array.dtype.removeprefix("torch.")
    flat = np.frombuffer(array.data, _BFLOAT16 if name == "bfloat16" else np.dtype(name))
    return _known(flat).reshape(array.shape)


def _known(flat: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Bfloat16, which numpy lacks and .npy files hold as two bytes, as the float32 that it equals.

    A float32 begins with the bits of the bfloat16.
    """
    if flat.dtype != _BFLOAT16:
        return flat
    return (flat.view("<u2").astype("<u4") << 16).view("<f4")


@lru_cache(maxsize=65_536)
def _parse_header(header: bytes) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, Fortran order and dtype; cached, since the same headers recur every round."""
    stream = io.BytesIO(header)
    version = npy.read_magic(stream)
    read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    parsed: tuple[tuple[int, ...], bool, np.dtype[Any]] = read(stream)
    return parsed


def to_tensors(arrays: ArrayRecord) -> Tensors:
    """Flower arrays as tensors with memory of their own and the same dtype."""
    import torch

    return {name: torch.from_numpy(view(array.data).copy()) for name, array in arrays.items()}


def arrays_of(message: Message) -> ArrayRecord:
    """First array record of a message, whatever name the application gave it."""
    return next(iter(message.content.array_records.values()))


def partition_of(context: Context) -> int:
    """Number of the client, from 0."""
    return int(context.node_config[PARTITION])


def round_of(message: Message) -> int:
    """Number of the round that a message of the server states; -1 if it states none."""
    records = message.content.config_records.values()
    words = [*(str(each.get("server-round")) for each in records), message.metadata.group_id]
    return next((int(word) for word in words if word.isdecimal()), -1)


@dataclass(frozen=True, slots=True)
class TrainRequest:
    """The server's request to train.

    Attributes:
        round: number of the round, from 1.
        client: number of the client, from 0.
        sent: parameters and buffers of the global model.
    """

    round: int
    client: int
    sent: Tensors

    @classmethod
    def read(cls, message: Message, context: Context) -> TrainRequest:
        """Parse the server's message."""
        return cls(round_of(message), partition_of(context), to_tensors(arrays_of(message)))


@dataclass(frozen=True, slots=True)
class TrainReply:
    """A client's reply to a request to train.

    Attributes:
        client: number of the client, or of the cohort under secure aggregation.
        num_examples: weight of the reply in a weighted mean.
        loss: mean training loss.
        kind: ``gradient`` (FedSGD) or ``weights`` (FedAvg).
        knowledge: only the facts that the threat model grants.
        tensors: gradients or weights; frozen parameters are absent.
    """

    client: int
    num_examples: int
    loss: float
    kind: Kind
    knowledge: Knowledge
    tensors: Tensors

    def write(self, reply_to: Message) -> Message:
        """The Flower message. FedAvg demands exactly one array record and one metric record."""
        metrics: dict[str, int | float | list[int] | list[float]] = {
            PARTITION: self.client,
            "num-examples": self.num_examples,
            "loss": self.loss,
        }
        update = ConfigRecord({"kind": self.kind, "knowledge": self.knowledge.model_dump_json()})
        content = RecordDict(
            {ARRAYS: to_arrays(self.tensors), METRICS: MetricRecord(metrics), UPDATE: update}
        )
        return Message(content, reply_to=reply_to)

    @classmethod
    def read(cls, message: Message) -> TrainReply:
        """Parse a reply; the inverse of ``write``."""
        facts = ReplyFacts.read(message)
        metrics = message.content.metric_records[METRICS]
        return cls(
            facts.client,
            int(str(metrics["num-examples"])),
            float(str(metrics.get("loss", math.nan))),
            facts.kind,
            facts.knowledge,
            to_tensors(arrays_of(message)),
        )


@dataclass(frozen=True, slots=True)
class ReplyFacts:
    """Metadata of a reply: what a client of fedsim states, else weights of Flower's node id."""

    client: int
    kind: Kind
    knowledge: Knowledge

    @classmethod
    def read(cls, message: Message) -> ReplyFacts:
        """Parse a reply."""
        update = message.content.config_records.get(UPDATE)
        if update is None:
            return cls(message.metadata.src_node_id, "weights", Knowledge())
        kind: Kind = "gradient" if update["kind"] == "gradient" else "weights"
        knowledge = Knowledge.model_validate_json(str(update["knowledge"]))
        partition = message.content.metric_records[METRICS][PARTITION]
        return cls(int(str(partition)), kind, knowledge)
