"""Participants of a round, and the end of the run if one of them fails."""

from collections.abc import Iterable
from typing import Any, cast

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from fedsim.errors import SimulationError
from fedsim.participation import draw
from server.wrapper import Wrapper


class Participation(Wrapper):
    """Draws the clients of each round from the seed, and ends the run if a client fails.

    Flower draws clients with the global ``random`` and carries on with fewer replies; a run would
    then neither be repeatable nor report that it is incomplete.

    Attributes:
        bytes_up: total size of the replies of each round, in bytes.
    """

    def __init__(self, inner: Strategy, share: float, seed: int) -> None:
        super().__init__(inner)
        self.share = share
        self.seed = seed
        self.bytes_up: dict[int, int] = {}
        self._clients: dict[int, int] = {}

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Let the inner strategy address only the clients drawn for this round."""
        nodes = list(grid.get_node_ids())
        self._clients = {node: client for client, node in enumerate(nodes)}
        drawn = draw(self.seed, server_round, len(nodes), self.share)
        some = cast(Grid, Some(grid, [nodes[i] for i in drawn]))
        messages = list(self.inner.configure_train(server_round, arrays, config, some))
        return sorted(messages, key=lambda m: self._clients[m.metadata.dst_node_id])

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Aggregate the replies, unless a client failed.

        Raises:
            SimulationError: a client failed; names the round, the client and the reason.
        """
        replies = list(replies)
        for message in replies:
            if message.has_error():
                client = self._clients.get(message.metadata.src_node_id, -1)
                raise failure(server_round, client, message)
        self.bytes_up[server_round] = sum(
            len(array.data)
            for message in replies
            for record in message.content.array_records.values()
            for array in record.values()
        )
        return self.inner.aggregate_train(server_round, replies)


def failure(round_: int, client: int, message: Message) -> SimulationError:
    """The error that ends a run after a client's error reply."""
    reason = str(message.error.reason).rstrip(".")
    return SimulationError(
        f"round {round_}, client {client}: {reason}. "
        "The run has ended; correct the cause and run the same command again."
    )


class Some:
    """A grid that shows only some of its nodes."""

    def __init__(self, grid: Grid, nodes: list[int]) -> None:
        self._grid, self._nodes = grid, nodes

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        return getattr(self._grid, name)

    def get_node_ids(self) -> list[int]:
        """Ids of the visible nodes, in the order of the grid."""
        return self._nodes
