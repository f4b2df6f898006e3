"""Utility of the global model under each defense, round by round."""

from __future__ import annotations

from collections.abc import Iterator

from experiments.plan.cells import Cell
from experiments.stages.privacy import spent
from fedsim.defenses import build_chain
from fedsim.records import DefenseKey, UtilityRow


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
