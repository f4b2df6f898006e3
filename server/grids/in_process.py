"""Clients that run one after another in this process: for tests and debuggers, or without Ray."""

import copy

from flwr.app import Message
from flwr.app.user_config import UserConfig
from flwr.clientapp import ClientApp

from fedsim.errors import Terminated, message_of
from fedsim.process import unchanged
from server.grids.local import LocalGrid, failed, load_app


class InProcessGrid(LocalGrid):
    """Runs one client at a time in this process.

    Args:
        app: the client app, or its name ``module:attribute``.
        clients: number of nodes.
        run_config: passed to every client in its context.
    """

    def __init__(self, app: ClientApp | str, clients: int, run_config: UserConfig) -> None:
        super().__init__(clients, run_config)
        self._app = load_app(app) if isinstance(app, str) else app

    def execute(self, messages: list[Message], timeout: float | None) -> list[Message]:
        """Call the app for each message; an exception, even one that exits, is an error reply.

        A setting of this process that a client changes, such as the working directory, is put back.
        """
        del timeout  # a call in this process cannot be interrupted
        return [self._reply(message) for message in messages]

    def _reply(self, message: Message) -> Message:
        context = self._contexts[message.metadata.dst_node_id]
        try:
            # Copied, since the messages of a round share one record in Flower; but not its arrays,
            # whose data cannot be changed in place.
            shared = {
                id(array): array
                for record in message.content.array_records.values()
                for array in record.values()
            }
            with unchanged():
                return self._app(copy.deepcopy(message, shared), context)
        except (KeyboardInterrupt, Terminated):
            raise
        except BaseException as error:
            return failed(message, f"{type(error).__name__}: {message_of(error)}")
