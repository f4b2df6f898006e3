"""Tables as CSV in full precision, Markdown, and LaTeX with booktabs."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from textwrap import wrap
from typing import TypeAlias

from experiments.wording.names import show
from fedsim.files import write_bytes
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


_WIDTH = 100
"""Characters in a line of a caption on a terminal."""
Value: TypeAlias = str | int | Number | None


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under a header.

    Attributes:
        name: file name without extension.
        caption: one sentence in plain text.
    """

    name: str
    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Value, ...], ...]

    def mapped(self, change: Callable[[str], str]) -> Table:
        """The table with each of its texts changed."""
        rows = tuple(
            tuple(change(value) if isinstance(value, str) else value for value in row)
            for row in self.rows
        )
        return Table(self.name, change(self.caption), tuple(map(change, self.columns)), rows)

    def marked(self, remark: str) -> Table:
        """The table with a remark before its caption and in a last column of its own."""
        caption = f"{remark[0].upper()}{remark[1:]}. {self.caption}"
        rows = tuple((*row, remark) for row in self.rows)
        return Table(self.name, caption, (*self.columns, "jobs run"), rows)


def named(tables: Iterable[Table], stem: str) -> dict[str, Table]:
    """Kind -> table without its empty columns; ``stem`` is the prefix of each name."""
    return {table.name: Table(f"{stem}-{table.name}", *_without_empty(table)) for table in tables}


def to_csv(table: Table) -> str:
    """Comma-separated values: full precision, empty for None, intervals in two extra columns.

    A text that a spreadsheet would take for a formula begins with an apostrophe.
    """
    columns = list(zip(*table.rows, strict=True)) or [()] * len(table.columns)
    wide = [any(isinstance(v, Number) and v.low is not None for v in column) for column in columns]
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    names = [
        [name, f"{name} low", f"{name} high"] if w else [name]
        for name, w in zip(table.columns, wide, strict=True)
    ]
    writer.writerow([inert(name) for part in names for name in part])
    for row in table.rows:
        cells = [_plain(value, w) for value, w in zip(row, wide, strict=True)]
        writer.writerow([cell for part in cells for cell in part])
    return buffer.getvalue()


def to_markdown(table: Table) -> str:
    """A Markdown pipe table; markup in the data is escaped."""
    right = _numeric(table)
    lines = [
        _pipes([_markdown(name) for name in table.columns]),
        _pipes(["---:" if numeric else "---" for numeric in right]),
        *(_pipes([_markdown(text_of(value)) for value in row]) for row in table.rows),
    ]
    return f"{_markdown(table.caption)}\n\n" + "\n".join(lines) + "\n"


def to_terminal(table: Table) -> str:
    """The caption, and the rows in columns of equal width, without any markup."""
    lines = [[visible_line(text) for text in line] for line in [table.columns, *_texts(table)]]
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


def to_latex(table: Table) -> str:
    r"""A LaTeX ``table`` float with ``\toprule``; it needs the package booktabs."""
    spec = "".join("r" if numeric else "l" for numeric in _numeric(table))
    head, *lines = (
        " & ".join(map(_latex, row)) + r" \\" for row in [table.columns, *_texts(table)]
    )
    body = "\n".join(lines)
    return rf"""\begin{{table}}
\centering
\caption{{{_latex(table.caption)}}}
\label{{tab:{table.name}}}
\begin{{tabular}}{{{spec}}}
\toprule
{head}
\midrule
{body}
\bottomrule
\end{{tabular}}
\end{{table}}
"""


WRITERS: dict[str, Callable[[Table], str]] = {
    "csv": to_csv,
    "md": to_markdown,
    "tex": to_latex,
}


def write_table(table: Table, folder: Path) -> None:
    """Write the table in all three forms."""
    for ending, form in WRITERS.items():
        write_bytes(folder / f"{table.name}.{ending}", form(table).encode())


def text_of(value: Value) -> str:
    """A value as it is printed on the page, in Markdown and in LaTeX; a dash for None."""
    if value is None:
        return "\N{EN DASH}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _plain(value: Value, wide: bool) -> list[str | int | None]:
    if not isinstance(value, Number):
        cell = inert(value) if isinstance(value, str) else value
        return [cell, None, None] if wide else [cell]
    ends = [None if end is None else repr(end) for end in (value.low, value.high)]
    return [repr(value.value), *(ends if wide else [])]


def _texts(table: Table) -> list[list[str]]:
    return [[text_of(value) for value in row] for row in table.rows]


def _numeric(table: Table) -> list[bool]:
    """For each column, whether all its values are numbers."""
    return [
        bool(column) and all(not isinstance(value, str) for value in column)
        for column in zip(*table.rows, strict=True)
    ] or [False] * len(table.columns)


def _pipes(texts: list[str]) -> str:
    return "| " + " | ".join(texts) + " |"


_MARKDOWN = str.maketrans({char: f"\\{char}" for char in "\\`*_[]|#~"})
_MARKDOWN |= str.maketrans({"<": "&lt;", ">": "&gt;", "&": "&amp;", "\n": " ", "\r": " "})

_LATEX = str.maketrans({char: f"\\{char}" for char in "&%$#_{}"})
_LATEX |= str.maketrans(
    {
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "<": r"\textless{}",
        ">": r"\textgreater{}",
        "|": r"\textbar{}",
        "\N{EN DASH}": "--",
        "\N{MINUS SIGN}": r"\ensuremath{-}",
        "∞": r"\ensuremath{\infty}",
        "↑": r"\ensuremath{\uparrow}",
        "↓": r"\ensuremath{\downarrow}",
        "[": "{[}",
        "]": "{]}",
        "\n": " ",
        "\r": " ",
    }
)


def _markdown(text: str) -> str:
    return visible(text).translate(_MARKDOWN)


def _latex(text: str) -> str:
    return visible(text).translate(_LATEX)


def _without_empty(
    table: Table,
) -> tuple[str, tuple[str, ...], tuple[tuple[Value, ...], ...]]:
    """Caption, columns and rows, without columns that no row has a value for."""
    filled = [
        i
        for i in range(len(table.columns))
        if not table.rows or any(row[i] not in {None, ""} for row in table.rows)
    ]
    return (
        table.caption,
        tuple(table.columns[i] for i in filled),
        tuple(tuple(row[i] for i in filled) for row in table.rows),
    )
