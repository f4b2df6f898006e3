"""Tables as CSV in full precision, and as plain text."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from textwrap import wrap
from typing import TypeAlias

import pandas as pd

from experiments.wording.names import show
from fedsim.visible import inert, visible, visible_line


@dataclass(frozen=True, slots=True)
class Number:
    """A number, printed with the digits that its unit deserves, and its interval if it has one."""

    value: float
    unit: str = ""
    low: float | None = None
    high: float | None = None

    def __str__(self) -> str:
        text = show(self.value, self.unit)
        if self.low is None:
            return text
        return f"{text} [{show(self.low, self.unit)}, {show(self.high, self.unit)}]"

    @property
    def said(self) -> str:
        """With its unit, as a sentence has it."""
        return str(self) if self.unit in {"", "1", "rate"} else f"{self} {self.unit}"


_WIDTH = 100
"""Characters in a line of a caption on a terminal."""
Value: TypeAlias = str | int | Number | None


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under a header.

    Attributes:
        name: file name without extension.
        caption: one sentence in plain text.
        rows: column -> value; a column that a row lacks is blank there.
    """

    name: str
    caption: str
    rows: tuple[Mapping[str, Value], ...]

    @property
    def columns(self) -> tuple[str, ...]:
        """Of any row, in order."""
        return tuple(dict.fromkeys(name for row in self.rows for name in row))

    @property
    def cells(self) -> list[list[Value]]:
        """The values of each row, by column."""
        return [[row.get(name) for name in self.columns] for row in self.rows]

    @property
    def filled(self) -> Table:
        """The table without columns that no row has a value for."""
        kept = {name for row in self.rows for name, v in row.items() if v not in {None, ""}}
        rows = tuple({name: v for name, v in row.items() if name in kept} for row in self.rows)
        return Table(self.name, self.caption, rows)

    def mapped(self, change: Callable[[str], str]) -> Table:
        """The table with each of its texts changed."""
        rows = tuple(
            {change(name): change(v) if isinstance(v, str) else v for name, v in row.items()}
            for row in self.rows
        )
        return Table(self.name, change(self.caption), rows)

    def more(self, **columns: Value) -> Table:
        """The table with further columns of one value each."""
        return Table(self.name, self.caption, tuple({**row, **columns} for row in self.rows))


def to_csv(table: Table) -> str:
    """Comma-separated values: full precision, empty for None, intervals in two extra columns.

    A text that a spreadsheet would take for a formula begins with an apostrophe.
    """
    columns: dict[str, list[str | int | None]] = {}
    for name in table.columns:
        values = [row.get(name) for row in table.rows]
        columns[inert(name)] = [_plain(value) for value in values]
        numbers = [value if isinstance(value, Number) else None for value in values]
        if any(number is not None and number.low is not None for number in numbers):
            for end in ("low", "high"):
                ends = [getattr(number, end, None) for number in numbers]
                columns[inert(f"{name} {end}")] = [None if e is None else repr(e) for e in ends]
    return str(pd.DataFrame(columns, dtype=object).to_csv(index=False, lineterminator="\n"))


def to_terminal(table: Table) -> str:
    """The caption, and the rows in columns of equal width, without any markup."""
    cells = [table.columns, *table.cells]
    lines = [[visible_line(text_of(value)) for value in row] for row in cells]
    widths = [max(len(line[i]) for line in lines) for i in range(len(table.columns))]
    right = _numeric(table)
    rows = [
        "  ".join(
            text.rjust(width) if numeric else text.ljust(width)
            for text, width, numeric in zip(line, widths, right, strict=True)
        ).rstrip()
        for line in lines
    ]
    return "\n".join([*wrap(visible(table.caption), _WIDTH), "", *rows, ""])


def text_of(value: Value) -> str:
    """A value as it is printed on the page; a dash for None."""
    if value is None:
        return "\N{EN DASH}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _plain(value: Value) -> str | int | None:
    if isinstance(value, Number):
        return repr(value.value)
    return inert(value) if isinstance(value, str) else value


def _numeric(table: Table) -> list[bool]:
    """For each column, whether all its values are numbers."""
    return [
        bool(column) and all(not isinstance(value, str) for value in column)
        for column in zip(*table.cells, strict=True)
    ] or [False] * len(table.columns)
