"""A grid whose messages are overheard, for apps without a strategy to wrap.

Two lines in a ServerApp with a loop of its own, whatever types its messages have::

    grid = fedsim.tap(grid, "captures", model=model, loss=loss, image_shape=(3, 32, 32))
    replies = grid.send_and_receive(messages)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flwr.app import Message
from flwr.serverapp import Grid

from fedsim.errors import ConfigError
from fedsim.store.capture import Kind
from fedsim.wire import round_of
from server.recorder import Recorder
from server.replies import Sent

if TYPE_CHECKING:  # which imports torch
    from fedsim.tasks.given import Model

_IN_FLIGHT = 2
"""Unanswered messages of a node whose arrays are held. At 1 a node that is asked again before it
answers loses its first update; at 4 a node that is gone holds two broadcasts more in memory."""


@dataclass(eq=False)
class _Asked:
    """Messages that were sent together.

    Attributes:
        stated: the round that they state; -1 if they do not.
        sent: node -> what it was sent.
        number: the round of their captures; -1 until a reply holds arrays.
    """

    stated: int
    sent: Mapping[int, Sent]
    number: int = -1


class Tap:
    """Passes every call on to a grid, and keeps what crosses it that holds arrays.

    Messages of any type are kept: ``train``, ``query`` and ``evaluate``. Those that state a round,
    in their configuration or as their group, are of that round, if it has no capture of the nodes
    yet; all others are counted. A late reply is held against what it answers. What comes back is on
    disk when the call returns.

    Args:
        inner: of Flower's runtime, or a simulation's.
        recorder: of this run.
    """

    def __init__(self, inner: Grid, recorder: Recorder) -> None:
        self._inner, self._recorder = inner, recorder
        self._kept: dict[int, set[int]] = {}
        self._open: dict[int, dict[str, _Asked]] = {}

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        if name.startswith("_inner"):  # copy and pickle look it up before __init__ has run
            raise AttributeError(name)
        return getattr(self._inner, name)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Note what is sent, then send it."""
        messages = list(messages)
        asked = self._note(messages)
        identifiers = list(self._inner.push_messages(messages))
        self._await(asked, messages)
        return identifiers

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """The replies that are there, as they are kept."""
        return self._heard(list(self._inner.pull_messages(message_ids)))

    def send_and_receive(self, messages: Iterable[Message], **options: Any) -> Iterable[Message]:  # noqa: ANN401
        """The replies to messages, both kept."""
        messages = list(messages)
        asked = self._note(messages)
        replies = list(self._inner.send_and_receive(messages, **options))
        self._await(asked, messages)
        return self._heard(replies)

    def _note(self, messages: Sequence[Message]) -> _Asked:
        carriers = [message for message in messages if message.content.array_records]
        return _Asked(max(map(round_of, carriers), default=-1), self._recorder.read(carriers))

    def _await(self, asked: _Asked, messages: Sequence[Message]) -> None:
        """Hold what was sent until it is answered, by the identifiers that sending gave."""
        for message in messages:
            if message.metadata.dst_node_id in asked.sent:
                held = self._open.setdefault(message.metadata.dst_node_id, {})
                held[message.metadata.message_id] = asked
                if len(held) > _IN_FLIGHT:
                    del held[next(iter(held))]

    def _heard(self, replies: list[Message]) -> list[Message]:
        answers: dict[_Asked, list[Message]] = {}
        for reply in replies:
            held = self._open.get(reply.metadata.src_node_id, {})
            asked = held.pop(reply.metadata.reply_to_message_id, None)
            if asked and not reply.has_error() and reply.content.array_records:
                answers.setdefault(asked, []).append(reply)
        for asked, heard in answers.items():
            asked.number = self._free(asked) if asked.number < 0 else asked.number
            self._recorder.sent = asked.sent
            self._recorder.overhear(asked.number, heard)
        if answers:
            self._recorder.flush()
        return replies

    def _free(self, asked: _Asked) -> int:
        """The round that they state, else the last; the next where that has some of the nodes."""
        number = asked.stated if asked.stated >= 0 else max(self._kept, default=1)
        while asked.sent.keys() & self._kept.get(number, set()):
            number += 1
        self._kept.setdefault(number, set()).update(asked.sent)
        return number


def tap(
    grid: Grid,
    captures: Path | str,
    *,
    kind: Kind | None = None,
    model: Model | None = None,
    **description: Any,  # noqa: ANN401
) -> Grid:
    """A grid that does what ``grid`` does, and whose messages are kept.

    Args:
        grid: that Flower gives the ServerApp.
        captures: folder to write to, as in ``Eavesdropper``.
        kind: what the clients reply with, as in ``Eavesdropper``; if None, the numbers tell.
        model: what is trained, as in ``Eavesdropper``.
        **description: its loss, tokenizer and so on, as in ``Eavesdropper``.

    Raises:
        ConfigError: ``grid`` is none, or the model is described incompletely.

    Example:
        >>> import fedsim
        >>> def main(grid, context):
        ...     grid = fedsim.tap(grid, "captures")
        ...     return grid.send_and_receive([])
    """
    if not hasattr(grid, "send_and_receive"):
        raise ConfigError(
            f"tap: {type(grid).__name__} is no grid of Flower. Pass the one that the function of "
            "ServerApp.main takes; a strategy is wrapped by fedsim.Eavesdropper."
        )
    return Tap(grid, Recorder(captures, kind=kind, model=model, **description))  # type: ignore[return-value]
