"""The papers' tables beside ours, cell by cell: the files of ``docs/results/papers``."""

from __future__ import annotations

import json

from docs.measured import DASH, PAPERS, Reference, Row, Strict, digits, found_row

HEADER = ["Cell", "Paper", "fedsim", "n", "95 % interval", "What differs"]


class Cell(Strict):
    """One cell of a paper, or several of one line.

    Attributes:
        place: where the paper has it.
        paper: the paper's numbers, as printed there.
        references: our values for them, in the same order; none if it was not measured.
        differs: what differs, or why it was not measured.
    """

    place: str
    paper: str
    references: tuple[Reference, ...] = ()
    differs: str


class Comparison(Strict):
    """What one paper reports, and what was measured here."""

    rows: tuple[Cell, ...]


def compared(name: str) -> list[list[str]]:
    """The lines of a paper's table, under ``HEADER``.

    Raises:
        LookupError: a reference names no value, or several.
    """
    text = (PAPERS / f"{name}.json").read_text(encoding="utf-8")
    return [_line(cell) for cell in Comparison.model_validate(json.loads(text)).rows]


def _line(cell: Cell) -> list[str]:
    sources = [(found_row(reference), digits(reference)) for reference in cell.references]
    sizes = dict.fromkeys(str(row.n) for row, _ in sources if row.n)
    values = [_without_interval(row).text(places) for row, places in sources]
    intervals = [_interval(row, places) for row, places in sources]
    measured = " / ".join(values) or "not measured"
    spread = " / ".join(intervals) if any(interval != DASH for interval in intervals) else DASH
    return [cell.place, cell.paper, measured, ", ".join(sizes) or DASH, spread, cell.differs]


def _without_interval(row: Row) -> Row:
    return row.model_copy(update={"low": None, "high": None} if row.mean is not None else {})


def _interval(row: Row, places: int) -> str:
    return row.model_copy(update={"mean": None, "outcome": ""}).text(places)
