"""A grid whose messages are overheard, for apps without a strategy to wrap.

Two lines in a ServerApp with a loop of its own, whatever types its messages have::

    grid = fedsim.tap(grid, "captures", model=model, loss=loss, image_shape=(3, 32, 32))
    replies = grid.send_and_receive(messages)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flwr.app import Message
from flwr.serverapp import Grid

from fedsim.errors import ConfigError
from fedsim.store.capture import Kind
from server.recorder import Recorder

if TYPE_CHECKING:  # which imports torch
    from fedsim.tasks.given import Model


class Tap:
    """Passes every call on to a grid, and keeps what crosses it that holds arrays.

    Messages of any type are kept: ``train``, ``query`` and ``evaluate``. Those of one group id that
    is a number are of that round, if the round has none of the node yet; all others are counted.
    What comes back is on disk when the call returns.

    Args:
        inner: of Flower's runtime, or a simulation's.
        recorder: of this run.
    """

    def __init__(self, inner: Grid, recorder: Recorder) -> None:
        self._inner, self._recorder = inner, recorder
        self._rounds: dict[int, set[int]] = {}
        self._number = 0

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        if name.startswith("_inner"):  # copy and pickle look it up before __init__ has run
            raise AttributeError(name)
        return getattr(self._inner, name)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Note what is sent, then send it."""
        messages = list(messages)
        self._note(messages)
        return self._inner.push_messages(messages)

    def pull_messages(self, *args: Any, **kwargs: Any) -> Iterable[Message]:  # noqa: ANN401
        """The replies that are there, as they are kept."""
        return self._heard(list(self._inner.pull_messages(*args, **kwargs)))

    def send_and_receive(
        self,
        messages: Iterable[Message],
        *args: Any,  # noqa: ANN401
        **kwargs: Any,  # noqa: ANN401
    ) -> Iterable[Message]:
        """The replies to messages, both kept."""
        messages = list(messages)
        self._note(messages)
        return self._heard(list(self._inner.send_and_receive(messages, *args, **kwargs)))

    def _note(self, messages: Sequence[Message]) -> None:
        carriers = [message for message in messages if message.content.array_records]
        if not carriers:
            return
        nodes = {message.metadata.dst_node_id for message in carriers}
        group = carriers[0].metadata.group_id
        number = int(group) if group.isdecimal() and int(group) else max(self._rounds, default=0)
        while not number or nodes & self._rounds.get(number, set()):
            number += 1
        self._rounds.setdefault(number, set()).update(nodes)
        self._number = number
        self._recorder.note(number, carriers)

    def _heard(self, replies: list[Message]) -> list[Message]:
        answers = [
            reply for reply in replies if not reply.has_error() and reply.content.array_records
        ]
        if answers and self._number:
            self._recorder.overhear(self._number, answers)
            self._recorder.flush()
        return replies


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
