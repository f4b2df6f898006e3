"""Flower's own runtime with repeatable results: nodes and replies in partition order."""

import time
from collections.abc import Iterable
from typing import Any

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from fedsim.errors import SimulationError
from fedsim.wire import PARTITION, WHOAMI

_PATIENCE = 120.0


class OrderedGrid:
    """A grid that sorts nodes and replies by partition, which it asks each node for once.

    Args:
        inner: a grid of Flower's runtime, whose node ids are random numbers.
        clients: number of nodes to wait for; the ServerApp starts before they are connected.
    """

    def __init__(self, inner: Grid, clients: int) -> None:
        self._inner = inner
        deadline = time.monotonic() + _PATIENCE
        while len(nodes := list(inner.get_node_ids())) < clients:
            if time.monotonic() > deadline:
                raise SimulationError(
                    f"federation.clients: {clients} SuperNodes are needed, one for each client "
                    f"and each probe, but {len(nodes)} connected. "
                    f"Start flwr run with num-supernodes={clients}."
                )
            time.sleep(0.1)
        questions = [Message(RecordDict(), node, WHOAMI) for node in nodes]
        answers = inner.send_and_receive(questions, timeout=_PATIENCE)
        self._partition = {
            answer.metadata.src_node_id: int(
                str(answer.content.metric_records["whoami"][PARTITION])
            )
            for answer in answers
        }

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        return getattr(self._inner, name)

    def get_node_ids(self) -> list[int]:
        """Node ids in partition order."""
        return sorted(self._partition, key=self._partition.__getitem__)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        """Replies in partition order."""
        replies = self._inner.send_and_receive(messages, timeout=timeout)
        return sorted(replies, key=lambda message: self._partition[message.metadata.src_node_id])
