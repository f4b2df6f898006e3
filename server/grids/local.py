"""Common part of the in-process and the Ray grid; no other module uses Flower's internals."""

import importlib
import logging
from abc import abstractmethod
from collections.abc import Iterable
from typing import cast

from flwr.app import Context, Error, Message, RecordDict
from flwr.app.user_config import UserConfig
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

from fedsim.wire import PARTITION

_FIRST_NODE = 1000
_RUN = 1


def load_app(reference: str) -> ClientApp:
    """The client app with the name ``module:attribute``."""
    module, _, attribute = reference.partition(":")
    return cast(ClientApp, getattr(importlib.import_module(module), attribute))


class LocalGrid(Grid):
    """A grid whose nodes are in partition order and whose replies are in the order of the nodes.

    Flower's own runtime numbers nodes at random and returns replies as they arrive, so sums of
    floats differ from run to run.

    Args:
        clients: number of nodes; node i runs partition i.
        run_config: passed to every client in its context.

    Attributes:
        incidents: failures that were recovered from or given up on, one sentence each.
    """

    def __init__(self, clients: int, run_config: UserConfig) -> None:
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, _RUN, 1
        self._run = Run.create_empty(run_id=_RUN)
        self._contexts = {
            _FIRST_NODE + client: Context(
                run_id=_RUN,
                node_id=_FIRST_NODE + client,
                node_config={PARTITION: client, "num-partitions": clients},
                state=RecordDict(),
                run_config=dict(run_config),
            )
            for client in range(clients)
        }
        self._replies: dict[str, Message] = {}
        self._sent = 0
        self.incidents: list[str] = []

    def set_run(self, run: Run) -> None:
        """Replace the run, as the interface requires; a local grid has only one."""
        self._run = run

    @property
    def run(self) -> Run:
        """The one run of this grid."""
        return self._run

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """A message to one node."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> list[int]:
        """Ids of all nodes, in partition order."""
        return list(self._contexts)

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Run the clients immediately and keep their replies until they are pulled."""
        messages = self._numbered(messages)
        replies = self.execute(messages, None)
        ids = [message.metadata.message_id for message in messages]
        self._replies |= dict(zip(ids, replies, strict=True))
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Replies to these messages; each can be pulled once."""
        return [self._replies.pop(name) for name in message_ids if name in self._replies]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        """Replies in partition order; a failed client yields an error reply."""
        replies = self.execute(self._numbered(messages), timeout)
        return sorted(replies, key=lambda message: message.metadata.src_node_id)

    def _numbered(self, messages: Iterable[Message]) -> list[Message]:
        numbered = list(messages)
        for message in numbered:
            self._sent += 1
            message.metadata.__dict__["_message_id"] = f"message-{self._sent:08d}"
        return numbered

    @abstractmethod
    def execute(self, messages: list[Message], timeout: float | None) -> list[Message]:
        """Run the clients: one reply for each message, in the same order."""

    def close(self) -> None:
        """Free the resources of the clients."""


def failed(message: Message, reason: str) -> Message:
    """The error reply to ``message``."""
    return Message(Error(code=1, reason=reason), reply_to=message)


def run_server(app: ServerApp, grid: LocalGrid, run_config: UserConfig) -> None:
    """Run a ServerApp on a local grid, and free the clients' resources afterwards."""
    logging.getLogger("flwr").setLevel(logging.ERROR)  # importing Flower sets it to INFO
    context = Context(
        run_id=_RUN, node_id=1, node_config={}, state=RecordDict(), run_config=dict(run_config)
    )
    try:
        app(grid=grid, context=context)
    finally:
        grid.close()
