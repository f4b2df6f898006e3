"""How much of a client's data an attack has recovered by each round: the union over rounds."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from experiments.cells import Cell
from experiments.tables import Number, Table
from fedsim.records import ScoreRow

Numbers: TypeAlias = Mapping[tuple[str, int, int], tuple[int, ...]]
"""(cell, round, client) -> row numbers of the examples in the private split."""

_EXACT = {"mse": (0.5 / 255) ** 2, "exact_match": 1.0}
"""Metric -> its value from which an example counts as exact: half a byte, or every token."""


@dataclass(frozen=True, slots=True)
class Coverage:
    """What one attack knows of one client after a round.

    Attributes:
        used: distinct rows that the client has used in captured rounds so far.
        recovered: those among them that were certified and exact in at least one round.
        false: certificates so far of examples that were not exact.
    """

    cell: str
    attack: str
    attack_options: str
    adaptive: bool
    client: int
    round: int
    used: int
    recovered: int
    false: int


def row_numbers(cell: Cell) -> dict[tuple[str, int, int], tuple[int, ...]]:
    """Which rows each capture is about. Reads ``truth/``: for the score stage alone."""
    return {
        (cell.name, key.round, key.client): cell.truth.record(key).rows
        for key in cell.captures.keys()
    }


def coverage(rows: Iterable[ScoreRow], numbers: Numbers) -> list[Coverage]:
    """One entry an attack, client and captured round; controls and probes are left out.

    A row counts once, however often it is recovered. An attack that gives no certificates recovers
    nothing here, however good its guesses are.
    """
    groups: dict[tuple[str, str, str, bool, int], list[ScoreRow]] = defaultdict(list)
    for row in rows:
        if row.metric in _EXACT and row.control == "none" and row.probe == "none":
            key = (row.cell, row.attack, row.attack_options, row.adaptive, row.client)
            groups[key].append(row)
    return [found for key in sorted(groups) for found in _over_rounds(groups[key], numbers)]


def _over_rounds(rows: list[ScoreRow], numbers: Numbers) -> Iterator[Coverage]:
    used: set[int] = set()
    recovered: set[int] = set()
    false = 0
    for round_ in sorted({row.round for row in rows}):
        for row in (row for row in rows if row.round == round_):
            number = numbers[row.cell, row.round, row.client][row.example]
            used.add(number)
            if row.certified and is_exact(row):
                recovered.add(number)
            elif row.certified:
                false += 1
        yield Coverage(
            cell=rows[0].cell,
            attack=rows[0].attack,
            attack_options=rows[0].attack_options,
            adaptive=rows[0].adaptive,
            client=rows[0].client,
            round=round_,
            used=len(used),
            recovered=len(recovered),
            false=false,
        )


def is_exact(row: ScoreRow) -> bool:
    """Whether the guess is the private example, for a row of ``mse`` or ``exact_match``."""
    if row.value is None:
        return False
    limit = _EXACT[row.metric]
    return row.value <= limit if row.metric == "mse" else row.value >= limit


def table(found: Iterable[Coverage], where: str) -> Table:
    """One row an attack, client and round."""
    return Table(
        "coverage",
        "Distinct private rows recovered exactly, with a certificate, up to each captured round, "
        f"of those that the client used: {where}.",
        (
            *("cell", "attack", "options", "client", "round"),
            *("used", "recovered", "share", "false certificates"),
        ),
        tuple(
            (
                *(one.cell, one.attack, one.attack_options, one.client, one.round),
                *(one.used, one.recovered, Number(one.recovered / one.used), one.false),
            )
            for one in found
        ),
    )
