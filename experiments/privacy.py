"""What the rounds have cost the clients in differential privacy."""

from __future__ import annotations

from collections import defaultdict

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

    A client has spent what its own steps cost; the rounds that it sat out are free, and so are
    probes, which are no part of the federation.
    """
    config = cell.config
    chain = build_chain(config.defense, "defense")
    if not chain.changes_sum:
        return {}
    rows = owned(config)
    schedules = [Schedule.of(config.federation, count) for count in rows]
    fitted = [chain.fit(schedule) for schedule in schedules]
    noted = [read_record(path, TruthRecord) for path in cell.truth.root.glob("*.json")]
    taken = [record for record in noted if record.probe == "none"]
    steps: defaultdict[int, int] = defaultdict(int)
    largest = {}
    for round_ in range(config.federation.rounds + 1):
        for record in taken:
            steps[record.key.client] += len(record.steps) if record.key.round == round_ else 0
        costs = {(fitted[c], count, schedules[c].rate) for c, count in steps.items() if count}
        claims = [one.epsilon_after(count, rate) for one, count, rate in costs]
        known = [claim for claim in claims if claim is not None]
        if len(known) < len(claims):
            return {}
        largest[round_] = max(known, default=0.0)
    return largest
