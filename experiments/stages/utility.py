"""Utility of the global model and privacy spent by the clients, by defense and round."""

from collections.abc import Iterator
from dataclasses import replace

from experiments.plan.cells import Cell
from experiments.wording.epsilons import Epsilons
from fedsim.accountant import Schedule
from fedsim.config.cell import CellConfig
from fedsim.defenses import build_chain
from fedsim.errors import StoreError
from fedsim.participation import draw
from fedsim.records import DefenseKey, SimulationRecord, UtilityRow
from fedsim.store.files import read_record

_COMPUTED = 16
"""Rounds of a long run for which epsilon is computed, which takes seconds each."""


def owned(cell: Cell) -> tuple[int, ...]:
    """How many private rows each client has, as the simulation recorded it.

    Raises:
        StoreError: the cell is not simulated, or was simulated when that was not recorded.
    """
    path = cell.folder / "simulation.json"
    rows = read_record(path, SimulationRecord).client_rows
    if not rows:
        raise StoreError(
            f"{path}: the number of rows of each client is missing, and the privacy budget depends "
            f"on it. Remove the file and run fedsim simulate {cell.folder.parent} again."
        )
    return rows


def spent(cell: Cell) -> dict[int, Epsilons]:
    """Round -> epsilon so far of the client with the largest; empty where nothing is claimed.

    A client has spent what its own steps or replies cost; the rounds that it sat out are free, and
    so are probes, which are no part of the federation. Of a long run some rounds are computed,
    captured ones and the last among them; any other has the epsilon of the next, an upper bound.
    """
    config, federation = cell.config, cell.config.federation
    chain = build_chain(config.defense, "defense")
    if chain.unit is None:
        return {}
    whole = [Schedule.of(federation, count) for count in owned(cell)]
    fitted = [chain.fit(schedule) for schedule in whole]
    rounds, taken = [0] * len(whole), {0: Epsilons(epsilon=0.0)}
    for round_ in range(1, federation.rounds + 1):
        for client in draw(config.seed, round_, federation.clients, federation.participation):
            rounds[client] += 1
        if round_ in _computed(config):
            claims = {
                Epsilons.after(
                    fit, replace(entire, rounds=count, steps=count * entire.steps // entire.rounds)
                )
                for fit, entire, count in zip(fitted, whole, rounds, strict=True)
            }
            known = [claim for claim in claims if claim is not None]
            if len(known) < len(claims):
                return {}
            taken[round_] = max(known, key=lambda each: each.epsilon)
    ends = sorted(taken)
    return {
        round_: taken[next(end for end in ends if end >= round_)]
        for round_ in range(federation.rounds + 1)
    }


def _computed(config: CellConfig) -> set[int]:
    last = config.federation.rounds
    return {*range(last, 0, -max(1, last // _COMPUTED)), *config.capture.rounds}


def defense_of(cell: Cell) -> DefenseKey:
    """The cell's chain of defenses, as the rows name it."""
    chain = build_chain(cell.config.defense, "defense")
    return DefenseKey(chain.name, chain.options_json)


def utility(cell: Cell) -> Iterator[UtilityRow]:
    """The utility of the cell's global model after each round, and the privacy spent so far."""
    record = cell.simulation
    defense, by_round = defense_of(cell), spent(cell)
    for point in record.utility:
        known = by_round.get(point.round)
        yield UtilityRow(
            run=cell.experiment.name,
            cell=cell.name,
            seed=cell.config.seed,
            **defense._asdict(),
            round=point.round,
            metric=point.metric,
            value=point.value,
            bytes_up=record.bytes_up.get(point.round, 0),
            seconds=point.seconds,
            **(known.model_dump() if known else {"epsilon": None}),
        )
