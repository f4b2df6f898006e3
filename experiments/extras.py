"""Tables of other parts that a chapter of the report shows after its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeAlias

from experiments.rows import read_rows
from experiments.signals import SignalRow, signal_table
from experiments.tables import Table
from fedsim.cell import CellConfig

Extra: TypeAlias = Callable[[Path, Mapping[str, CellConfig]], Table | None]
"""From the run folder and the cells of a chapter, by name; None where there is nothing to show.

A table's name ends its file's name, and its caption stands above it. Equal runs give equal tables.
"""


def signal_to_noise(run: Path, cells: Mapping[str, CellConfig]) -> Table | None:
    """What each defense left of the update, and the size of what is sent."""
    path = run / "signals.parquet"
    rows = read_rows(path, SignalRow) if path.exists() else []
    mine = [row for row in rows if row.cell in cells]
    return signal_table(mine) if mine else None


EXTRAS: dict[str, Extra] = {
    "Signal and noise": signal_to_noise,
}
"""Heading on the page -> what makes the table; one line for each."""


def extras(run: Path, cells: Mapping[str, CellConfig], stem: str) -> dict[str, Table]:
    """Heading -> table, for one chapter; ``stem`` begins each name."""
    made = {heading: make(run, cells) for heading, make in EXTRAS.items()}
    return {
        heading: Table(f"{stem}-{table.name}", table.caption, table.columns, table.rows)
        for heading, table in made.items()
        if table is not None
    }
