"""Clients one after another in this process: for tests, for debuggers, and where Ray cannot run."""

from __future__ import annotations

import copy

from flwr.app import Message
from flwr.app.user_config import UserConfig
from flwr.clientapp import ClientApp

from server.grids.local import LocalGrid, failed, load_app


class InProcessGrid(LocalGrid):
    """Runs ``app``, an app or ``module:attribute``, for one client at a time."""

    def __init__(self, app: ClientApp | str, clients: int, run_config: UserConfig) -> None:
        super().__init__(clients, run_config)
        self._app = load_app(app) if isinstance(app, str) else app

    def execute(self, messages: list[Message], timeout: float | None) -> list[Message]:
        """Call the app for each message; an exception becomes an error reply."""
        del timeout  # a call in the same process cannot be interrupted
        return [self._reply(message) for message in messages]

    def _reply(self, message: Message) -> Message:
        context = self._contexts[message.metadata.dst_node_id]
        try:
            # Flower shares one record among the messages of a round.
            return self._app(copy.deepcopy(message), context)
        except Exception as error:
            return failed(message, f"{type(error).__name__}: {error}")
