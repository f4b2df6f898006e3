"""What the rounds have cost the clients in differential privacy."""

from __future__ import annotations

from dataclasses import replace

from experiments.cells import Cell
from fedsim.accountant import Schedule
from fedsim.cell import CellConfig
from fedsim.data.partition import partition
from fedsim.defenses import build_chain
from fedsim.files import read_record
from fedsim.setting import load_setting
from fedsim.truth import TruthRecord


def owned(config: CellConfig) -> list[int]:
    """How many private rows each client has."""
    private, federation = load_setting(config).holdings.private, config.federation
    parts = partition(private.labels, federation.clients, federation, config.seed)
    return [len(part) for part in parts]


def spent(cell: Cell) -> dict[int, float]:
    """Round -> epsilon so far of the client with the largest; empty where nothing is claimed.

    A client has spent what its own steps or replies cost; the rounds that it sat out are free, and
    so are probes, which are no part of the federation.
    """
    config = cell.config
    chain = build_chain(config.defense, "defense")
    if chain.unit is None:
        return {}
    rows = owned(config)
    schedules = [Schedule.of(config.federation, count) for count in rows]
    fitted = [chain.fit(schedule) for schedule in schedules]
    done = [replace(schedule, steps=0, rounds=0) for schedule in schedules]
    noted = [read_record(path, TruthRecord) for path in cell.truth.root.glob("*.json")]
    taken = [record for record in noted if record.probe == "none"]
    largest = {}
    for round_ in range(config.federation.rounds + 1):
        for record in taken:
            if record.key.round == round_:
                own, steps = done[record.key.client], len(record.steps)
                new = replace(own, steps=own.steps + steps, rounds=own.rounds + 1)
                done[record.key.client] = new
        claims = {
            one.epsilon_after(own) for one, own in zip(fitted, done, strict=True) if own.rounds
        }
        known = [claim for claim in claims if claim is not None]
        if len(known) < len(claims):
            return {}
        largest[round_] = max(known, default=0.0)
    return largest
