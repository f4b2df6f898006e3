"""A client's work in one round on its own rows."""

from collections.abc import Sequence
from dataclasses import dataclass

from clients.updates import LocalUpdate
from fedsim.local.client import LocalClient
from fedsim.local.steps import schedule
from fedsim.store.capture import Kind
from fedsim.types import Rows, Tensors


@dataclass(frozen=True)
class LocalTrainer(LocalClient):
    """A client that draws its batches from rows of its own."""

    def run(
        self, sent: Tensors, rows: Rows, round_: int, client: int, memory: Tensors | None = None
    ) -> LocalUpdate:
        """Train on the client's ``rows`` from the broadcast parameters ``sent``."""
        steps = schedule(self.config, self.seed, len(rows), round_, client)
        return self.fit(len(rows)).work(sent, rows, steps, round_, client, memory)

    def work(
        self,
        sent: Tensors,
        rows: Rows,
        steps: Sequence[Sequence[int]],
        round_: int,
        client: int,
        memory: Tensors | None = None,
    ) -> LocalUpdate:
        """Train on ``rows``, given the positions of each step; the defense is already fitted."""
        used = list(dict.fromkeys(position for step in steps for position in step))
        index = {position: i for i, position in enumerate(used)}
        plan = tuple(tuple(index[position] for position in step) for step in steps)
        batch = self.task.encode(rows.take(used))
        done = self.defend(sent, batch, plan, round_, client, memory)
        kind: Kind = "gradient" if self.config.protocol == "fedsgd" else "weights"
        whole, tables = len(used) == len(rows), self.chain.tables
        return LocalUpdate(
            kind,
            done.tensors,
            batch,
            tuple(used),
            whole,
            plan,
            done.loss,
            tables,
            done.learning_rate,
            done.memory,
        )
