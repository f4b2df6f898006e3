"""Probes at the server: nodes that are sent what clients are, and whose replies change nothing."""

from collections.abc import Iterable
from typing import cast

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from fedsim.config.cell import CaptureConfig
from server.participation import Some, failure
from server.wrapper import Wrapper


class Probing(Wrapper):
    """Sends the model of each captured round to the probes as well, and drops their replies.

    Aggregation is bit for bit the same as without it. An eavesdropper around this strategy captures
    clients and probes alike.

    Args:
        inner: the strategy that configures rounds and aggregates; it sees only the clients.
        clients: number of the grid's nodes, in its order, that are clients; the others are probes.
        policy: which rounds are captured.
    """

    def __init__(self, inner: Strategy, clients: int, policy: CaptureConfig) -> None:
        super().__init__(inner)
        self.clients = clients
        self.policy = policy
        self._probes: dict[int, int] = {}

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """The inner strategy's messages to clients, followed by the same message to each probe."""
        nodes = list(grid.get_node_ids())
        self._probes = {node: i for i, node in enumerate(nodes) if i >= self.clients}
        clients = cast(Grid, Some(grid, nodes[: self.clients]))
        messages = list(self.inner.configure_train(server_round, arrays, config, clients))
        if messages and self.policy.keeps_round(server_round):
            first = messages[0]
            kind = first.metadata.message_type
            messages += [Message(first.content, node, kind) for node in self._probes]
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Pass on the replies of clients only.

        Raises:
            SimulationError: a probe failed.
        """
        clients = []
        for message in replies:
            probe = self._probes.get(message.metadata.src_node_id)
            if probe is None:
                clients.append(message)
            elif message.has_error():
                raise failure(server_round, probe, message)
        return self.inner.aggregate_train(server_round, clients)
