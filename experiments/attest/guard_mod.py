"""A Flower client mod that looks at the client's reply before it is sent."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, TypeAlias

import torch
from flwr.app import Array, ArrayRecord, Context, Error, Message, MetricRecord

from experiments.attest.guard import TESTS, Guard
from fedsim.defenses import build_chain
from fedsim.errors import ConfigError

Call: TypeAlias = Callable[[Message, Context], Message]
Then: TypeAlias = Literal["stop", "flag", "apply"]
RECORD = "guard"
"""Start of the names of metrics that hold what the guard found: 1 for each test that shows."""
_STOPPED = 4040
"""Code of the error that is sent in place of a reply."""


def guard_mod(
    hold: str = "", then: Then = "stop", apply: Mapping[str, Any] | None = None
) -> Callable[[Message, Context, Call], Message]:
    """A mod that stands before those that clip and add noise: ``mods=[it, LocalDpMod(...)]``.

    It notes what the client's layers take while it trains, and holds the reply against it as
    ``fedsim.Guard`` does. A reply that shows a row is not sent; or it is sent with a metric; or a
    defense is applied to it first, and what still shows is not sent.

    Args:
        hold: tests that a reply has to pass, with commas: exact, rows, words, statistics; all if
            empty.
        then: what becomes of one that does not: ``stop``, ``flag`` or ``apply``.
        apply: for ``apply``, a defense of the update with its options, such as
            ``{"name": "dp_client", "clip": 1.0, "noise_multiplier": 1.0}``.

    Raises:
        ConfigError: there is no such test or defense.

    Example:
        >>> import fedsim
        >>> from flwr.clientapp import ClientApp
        >>> app = ClientApp(mods=[fedsim.guard_mod(hold="rows,words", then="flag")])
    """
    Guard(hold)  # refuses names of no test
    if (then == "apply") != (apply is not None):
        raise ConfigError('guard_mod: then="apply" and apply={"name": ...} belong together.')
    chain = build_chain((apply,) if apply else (), "guard_mod.apply")

    def mod(message: Message, context: Context, call_next: Call) -> Message:
        if message.metadata.message_type.partition(".")[0] != "train":
            return call_next(message, context)
        guard = Guard(hold)
        with guard.watching():
            reply = call_next(message, context)
        if reply.has_error() or not reply.content.array_records:
            return reply
        sent = Tensors(next(iter(message.content.array_records.values())))
        name, record = next(iter(reply.content.array_records.items()))
        note = guard.check(sent, Tensors(record))
        if not note.passes and then == "apply":
            tensors = {key: value.clone() for key, value in Tensors(record).items()}
            shared = {key: value for key, value in tensors.items() if key in sent}
            update = {key: sent[key] - value for key, value in shared.items()}
            rng = torch.Generator()
            rng.seed()
            defended = chain.on_update(update, rng)
            tensors |= {key: sent[key] - value for key, value in defended.items()}
            reply.content[name] = ArrayRecord({k: Array(v.numpy()) for k, v in tensors.items()})
            note = guard.check(sent, tensors)
        if not note.passes and then != "flag":
            return Message(Error(_STOPPED, str(note)), reply_to=message)
        shown = {test for test, _ in note.shows}
        metrics = next(iter(reply.content.metric_records.values()), None)
        if metrics is None:  # Flower's strategies take replies with one such record
            reply.content[RECORD] = metrics = MetricRecord()
        metrics.update({f"{RECORD}-{test}": int(test in shown) for test in TESTS})
        return reply

    return mod


class Tensors(Mapping[str, torch.Tensor]):
    """Those of a record, each unpacked where it is asked for."""

    def __init__(self, record: ArrayRecord) -> None:
        self._record = record
        self._known: dict[str, torch.Tensor] = {}

    def __getitem__(self, name: str) -> torch.Tensor:
        if name not in self._known:
            self._known[name] = torch.from_numpy(self._record[name].numpy())
        return self._known[name]

    def __contains__(self, name: object) -> bool:
        return name in self._record

    def __iter__(self) -> Iterator[str]:
        return iter(self._record)

    def __len__(self) -> int:
        return len(self._record)
