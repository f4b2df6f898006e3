"""How much of a client's data an attack has recovered by each round: the union over rounds."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import TypeAlias

from experiments.plan.cells import Cell
from fedsim.files import Record
from fedsim.records import ScoreRow

Numbers: TypeAlias = Mapping[tuple[str, int, int], tuple[int, ...]]
"""(cell, round, client) -> row numbers of the examples in the private split."""

EXACT = {"mse": (0.5 / 255) ** 2, "exact_match": 1.0}
"""Metric -> its value from which an example counts as exact: half a byte, or every token."""


class Coverage(Record):
    """What one attack knows of one client after a round; a row of ``coverage.parquet``.

    Attributes:
        client: -1 for all clients together, where the server sees sums over them.
        used: distinct rows that the client has used in captured rounds so far.
        recovered: those among them that were certified and exact in at least one round.
        exact: those that were exact in at least one round, whether the attack knew it or not.
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
    exact: int
    false: int


def row_numbers(cell: Cell) -> dict[tuple[str, int, int], tuple[int, ...]]:
    """Which rows each capture is about. Reads ``truth/``: for the score stage alone."""
    return {
        (cell.name, key.round, key.client): cell.truth.record(key).rows
        for key in cell.captures.keys()
    }


def coverage(
    rows: Iterable[ScoreRow], numbers: Numbers, pooled: Collection[str] = ()
) -> list[Coverage]:
    """One entry an attack, client and captured round; controls and probes are left out.

    In the cells of ``pooled`` a row's client is a cohort, whose members change: all are one owner.

    A row counts once, however often it is recovered. An attack that gives no certificates recovers
    nothing that it could be sure of, however good its guesses are.
    """
    groups: dict[tuple[str, str, str, bool, int], list[ScoreRow]] = defaultdict(list)
    for row in rows:
        if row.metric in EXACT and row.control == "none" and row.probe == "none":
            client = -1 if row.cell in pooled else row.client
            groups[row.cell, row.attack, row.attack_options, row.adaptive, client].append(row)
    return [
        found for key in sorted(groups) for found in _over_rounds(key[-1], groups[key], numbers)
    ]


def _over_rounds(client: int, rows: list[ScoreRow], numbers: Numbers) -> Iterator[Coverage]:
    used: set[int] = set()
    recovered: set[int] = set()
    exact: set[int] = set()
    false = 0
    for round_ in sorted({row.round for row in rows}):
        for row in (row for row in rows if row.round == round_):
            number = numbers[row.cell, row.round, row.client][row.example]
            used.add(number)
            if is_exact(row):
                exact.add(number)
            if row.certified and is_exact(row):
                recovered.add(number)
            elif row.certified:
                false += 1
        yield Coverage(
            cell=rows[0].cell,
            attack=rows[0].attack,
            attack_options=rows[0].attack_options,
            adaptive=rows[0].adaptive,
            client=client,
            round=round_,
            used=len(used),
            recovered=len(recovered),
            exact=len(exact),
            false=false,
        )


def is_exact(row: ScoreRow) -> bool:
    """Whether the guess is the private example, for a row of ``mse`` or ``exact_match``."""
    if row.value is None:
        return False
    limit = EXACT[row.metric]
    return row.value <= limit if row.metric == "mse" else row.value >= limit
