"""Probes: client steps on the same rows in every captured round, never aggregated.

Clients use different batches in every round, which alone changes what leaks. A fixed batch isolates
the effect of training, and a fixed batch that no client trains on isolates the effect of
memorisation.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Literal

import torch

from clients.train import LocalTrainer
from clients.updates import LocalUpdate
from fedsim.config.cell import CellConfig
from fedsim.config.federation import FederationConfig
from fedsim.data.holdings import Holdings, unlike
from fedsim.errors import ConfigError
from fedsim.local.steps import schedule
from fedsim.participation import draw
from fedsim.seeds import generator
from fedsim.types import Rows, Tensors


@dataclass(frozen=True, slots=True)
class Probe:
    """A client that exists only for the evaluation.

    Attributes:
        kind: ``member`` for rows of a client, ``fresh`` for held-out rows.
        rows: all rows that the probe trains on.
        host: the client that it stands in for, which owns the rows of a member probe.
        owned: number of rows of the host, from which a privacy budget is turned into noise.
    """

    kind: Literal["member", "fresh"]
    rows: Rows
    host: int
    owned: int

    def run(
        self, trainer: LocalTrainer, sent: Tensors, round_: int, client: int, memory: Tensors
    ) -> LocalUpdate:
        """A client's step, with the rows in the same order in every round.

        The server is told what it is told of the host: that rows are the same in every round only
        if the host uses all of its own.
        """
        steps = schedule(trainer.config, trainer.seed, len(self.rows), 0, client)
        update = trainer.fit(self.owned).work(sent, self.rows, steps, round_, client, memory)
        return replace(update, all_rows=len(self.rows) == self.owned)


def make_probes(
    config: CellConfig, holdings: Holdings, parts: Sequence[Sequence[int]]
) -> tuple[Probe, ...]:
    """Probes of a cell, members before fresh ones; probe i has the client number ``clients + i``.

    Args:
        config: configuration of the cell.
        holdings: who holds which rows.
        parts: positions of the clients' rows among the private ones.

    Raises:
        ConfigError: the clients train on too few rows, or too few rows are held out.
    """
    wanted = config.probes
    members = list(islice(_members(config, holdings.private, parts), wanted.member))
    if len(members) < wanted.member:
        raise ConfigError(
            f"probes.member: {wanted.member} are requested, but the rows that the clients train on "
            f"suffice for {len(members)}. Ask for that many, or use more rounds or more clients."
        )
    return (*members, *_fresh(config, holdings, parts))


def _members(config: CellConfig, private: Rows, parts: Sequence[Sequence[int]]) -> Iterator[Probe]:
    """Member probes on rows that a client trains on, the earliest first; the clients take turns."""
    size = _sizes(config.federation, parts)
    drawn = [_drawn(config, client, parts) for client in range(len(parts))]
    working = list(range(len(parts)))
    while working:
        for client in list(working):
            positions = list(islice(drawn[client], size[client]))
            if len(positions) < size[client]:
                working.remove(client)
                continue
            rows = private.take([parts[client][position] for position in positions])
            yield Probe("member", rows, client, len(parts[client]))


def _drawn(config: CellConfig, client: int, parts: Sequence[Sequence[int]]) -> Iterator[int]:
    """Distinct positions that a client trains on, in the order of their first use."""
    federation, seed = config.federation, config.seed
    seen: set[int] = set()
    for round_ in range(1, federation.rounds + 1):
        if client not in draw(seed, round_, len(parts), federation.participation):
            continue
        for step in schedule(federation, seed, len(parts[client]), round_, client):
            new = [position for position in step if position not in seen]
            seen.update(new)
            yield from new


def _fresh(
    config: CellConfig, holdings: Holdings, parts: Sequence[Sequence[int]]
) -> Iterator[Probe]:
    """Fresh probes on held-out rows that equal no private and no auxiliary row."""
    size = _sizes(config.federation, parts)
    hosts = [number % len(parts) for number in range(config.probes.fresh)]
    needed = sum(size[host] for host in hosts)
    others = [rows for rows in (holdings.private, holdings.auxiliary) if rows is not None]
    unseen = unlike(holdings.heldout, *others) if hosts else holdings.heldout
    if len(unseen) < needed:
        raise ConfigError(
            f"probes.fresh: {len(hosts)} of them need {needed} rows, but only {len(unseen)} "
            "held-out rows differ from all private and auxiliary rows. Ask for fewer, or raise "
            "task.heldout_rows."
        )
    order = iter(torch.randperm(len(unseen), generator=generator(config.seed, "fresh")).tolist())
    for host in hosts:
        rows = unseen.take(list(islice(order, size[host])))
        yield Probe("fresh", rows, host, len(parts[host]))


def _sizes(federation: FederationConfig, parts: Sequence[Sequence[int]]) -> list[int]:
    """Number of rows that each client uses in a round."""
    most = federation.batch_size if federation.protocol == "fedsgd" else federation.client_rows
    return [min(most or len(part), len(part)) for part in parts]
