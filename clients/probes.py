"""Probes: client steps on the same rows in every captured round, never aggregated.

The clients' own batches differ from round to round, and with them what leaks. Only a fixed batch
tells what the training changes, and only one that nobody trains on tells what memorising adds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Literal

import torch

from clients.local_steps import schedule
from clients.train import LocalTrainer, LocalUpdate
from fedsim.cell import CellConfig
from fedsim.data.holdings import Holdings, unlike
from fedsim.errors import ConfigError
from fedsim.federation import FederationConfig
from fedsim.participation import draw
from fedsim.seeds import generator
from fedsim.types import Rows, Tensors


@dataclass(frozen=True, slots=True)
class Probe:
    """A client that exists for the evaluation alone.

    Attributes:
        rows: all that it ever trains on.
        host: the client in whose stead it works, who owns the rows of a member probe.
        owned: how many rows the host has; a privacy budget is turned into noise by that number.
    """

    kind: Literal["member", "fresh"]
    rows: Rows
    host: int
    owned: int

    def run(self, trainer: LocalTrainer, sent: Tensors, round_: int, client: int) -> LocalUpdate:
        """The step of a client, its rows in the same order in every round."""
        steps = schedule(trainer.config, trainer.seed, len(self.rows), 0, client)
        return trainer.fit(self.owned).work(sent, self.rows, steps, round_, client)


def make_probes(
    config: CellConfig, holdings: Holdings, parts: Sequence[Sequence[int]]
) -> tuple[Probe, ...]:
    """The probes of a cell: members, then fresh ones. Probe ``i`` is client ``clients + i``.

    Args:
        config: of the cell.
        holdings: who holds which rows.
        parts: the clients' positions among the private rows.

    Raises:
        ConfigError: the clients train on too few rows, or too few are held out.
    """
    wanted = config.probes
    members = list(islice(_members(config, holdings.private, parts), wanted.member))
    if len(members) < wanted.member:
        raise ConfigError(
            f"probes.member: {wanted.member} are wanted, and the rows that the clients train on "
            f"suffice for {len(members)}. Ask for so many, or use more rounds or more clients."
        )
    return (*members, *_fresh(config, holdings, parts))


def _members(config: CellConfig, private: Rows, parts: Sequence[Sequence[int]]) -> Iterator[Probe]:
    """Rows that a client trains on, the earliest first; one probe of each client in turn."""
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
    """The distinct positions that a client trains on, in the order of their first use."""
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
    """Held-out rows like no private row and like no row of the attacker."""
    size = _sizes(config.federation, parts)
    hosts = [number % len(parts) for number in range(config.probes.fresh)]
    needed = sum(size[host] for host in hosts)
    others = [rows for rows in (holdings.private, holdings.auxiliary) if rows is not None]
    unseen = unlike(holdings.heldout, *others) if hosts else holdings.heldout
    if len(unseen) < needed:
        raise ConfigError(
            f"probes.fresh: {len(hosts)} of them need {needed} rows, and {len(unseen)} held-out "
            "rows equal no private and no auxiliary row. Ask for fewer, or raise "
            "task.heldout_rows."
        )
    order = iter(torch.randperm(len(unseen), generator=generator(config.seed, "fresh")).tolist())
    for host in hosts:
        rows = unseen.take(list(islice(order, size[host])))
        yield Probe("fresh", rows, host, len(parts[host]))


def _sizes(federation: FederationConfig, parts: Sequence[Sequence[int]]) -> list[int]:
    """How many rows each client uses in a round."""
    most = federation.batch_size if federation.protocol == "fedsgd" else federation.client_rows
    return [min(most or len(part), len(part)) for part in parts]
