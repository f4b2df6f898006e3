"""The measured results as data, and the Markdown tables made from them.

A table stands in a page between ``<!-- table: NAME -->`` and ``<!-- end -->``; NAME is a file of
``docs/results``. ``python -m docs.tables`` writes every table anew.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, model_validator

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "docs" / "results"
HEADLINES = "headline"
DASH = "–"
_TABLE = re.compile(r"(<!-- table: ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


class Strict(BaseModel):
    """A frozen record of a result file; an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Row(Strict):
    """One measured value.

    Attributes:
        setting: what distinguishes this value from the others, by the name of the column.
        measure: what was measured.
        n: number of victims, batches or seeds behind the mean.
        mean: the value; for the unit ``of n`` the share of the ``n`` that succeeded.
        low: lower end of the 95 % interval, where one was measured.
        high: upper end.
        unit: unit of the value, ``1`` for a ratio.
        paper_value: the paper's number in the same unit, where it has one for this setting.
        outcome: what happened, where a number does not say it.
    """

    setting: dict[str, str]
    measure: str
    n: int | None = None
    mean: float | None = None
    low: float | None = None
    high: float | None = None
    unit: str = "1"
    paper_value: float | None = None
    outcome: str = ""

    @model_validator(mode="after")
    def _says_something(self) -> Row:
        values = (self.mean, self.low, self.paper_value)
        if all(value is None for value in values) and not self.outcome:
            raise ValueError(f"{self.setting}: a row needs a value or an outcome")
        if (self.low is None) != (self.high is None):
            raise ValueError(f"{self.setting}: an interval has two ends")
        if self.unit == "of n" and self.mean is not None and self.n is None:
            raise ValueError(f"{self.setting}: a share 'of n' needs n")
        return self

    def text(self, digits: int) -> str:
        """The value with its interval, or the outcome."""
        parts = []
        if self.unit == "of n" and self.mean is not None and self.n is not None:
            parts.append(f"{round(self.mean * self.n)} of {self.n}")
        elif self.mean is not None:
            parts.append(self._number(self.mean, digits))
        if self.low is not None and self.high is not None:
            low, high = self._number(self.low, digits), self._number(self.high, digits)
            parts.append(f"{low} to {high}" if self.mean is None else f"[{low}, {high}]")
        if self.outcome:
            parts.append(self.outcome if not parts else f"({self.outcome})")
        return " ".join(parts) or DASH

    def _number(self, value: float, digits: int) -> str:
        """With the digits of its measure; a percentage with those that were recorded."""
        return f"{value:g}" if self.unit == "percent" else number(value, digits)


class Columns(Strict):
    """How the rows are laid out.

    Attributes:
        lines: the settings that name a line; ``measure`` may be one of them.
        across: the setting, or ``measure``, whose values are the columns.
        paper: whether the paper's values stand in columns or in lines of their own.
        digits: decimal places of each measure; 2 where it is not named.
    """

    lines: tuple[str, ...]
    across: str = "measure"
    paper: Literal["column", "line"] = "column"
    digits: dict[str, int] = {}


class Result(Strict):
    """One file of ``docs/results``: one table and where it comes from.

    Attributes:
        paper: the paper it stands beside, or an empty text.
        command: what reproduces it.
        commit: the commit that recorded the numbers.
        machine: what it was measured on.
        cpu_seconds: CPU time of the command; None where it was not recorded.
        cpu_seconds_reason: why it is None.
        notes: what a reader has to know to compare the numbers.
    """

    title: str
    paper: str
    command: str
    commit: str
    date: str
    seed: int
    machine: str
    cpu_seconds: float | None
    cpu_seconds_reason: str = ""
    columns: Columns
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _accounts_for_time(self) -> Result:
        if (self.cpu_seconds is None) != bool(self.cpu_seconds_reason):
            raise ValueError("give cpu_seconds, or the reason why it is missing")
        return self

    def table(self) -> str:
        """The Markdown table alone."""
        lines, across, cells = _grid(self)
        sizes = {line: _sizes(cells[line]) for line in lines}
        one_size = len({*sizes.values(), ""}) <= 2  # said once, below the table
        body = []
        for line in lines:
            values = [
                " ".join(row.text(self.columns.digits.get(row.measure, 2)) for row in found)
                if (found := cells[line].get(column))
                else DASH
                for column in across
            ]
            body.append([*line, *values, *([] if one_size else [sizes[line] or DASH])])
        header = [*(_heading(key) for key in self.columns.lines), *across]
        return markdown([*header, *([] if one_size else ["n"])], body)

    def source(self, name: str) -> str:
        """The line below the table: how the numbers were measured."""
        sizes = {_sizes(cells) for cells in _grid(self)[2].values()} - {""}
        n = f"n = {sizes.pop()}; " if len(sizes) == 1 else ""
        took = (
            f"{self.cpu_seconds:,.0f} CPU seconds"
            if self.cpu_seconds is not None
            else self.cpu_seconds_reason
        )
        return (
            f"`{self.command}`; {n}seed {self.seed}; {self.machine}; {took}; "
            f"commit {self.commit} of {self.date}. Data: `docs/results/{name}.json`."
        )


class Reference(Strict):
    """One cell of the README's table: which value of which file it repeats."""

    result: str
    setting: dict[str, str]
    measure: str


class Headline(Strict):
    """One line of the README's table."""

    question: str
    answer: str
    references: tuple[Reference, ...]


class Headlines(Strict):
    """The README's table; ``answer`` has ``{0}``, ``{1}`` and so on where a value belongs."""

    rows: tuple[Headline, ...]


Cells = dict[tuple[str, ...], dict[str, list[Row]]]


def _grid(result: Result) -> tuple[list[tuple[str, ...]], list[str], Cells]:
    """Lines and columns in the order of the rows, and the rows of each cell."""
    cells: Cells = {}
    across: list[str] = []
    for row in result.rows:
        for line, column, placed in _places(result.columns, row):
            cells.setdefault(line, {}).setdefault(column, []).append(placed)
            if column not in across:
                across.append(column)
    return list(cells), across, cells


def _places(columns: Columns, row: Row) -> Iterator[tuple[tuple[str, ...], str, Row]]:
    """The row's own cell and, where it has the paper's value, that one's."""
    values = {**row.setting, "measure": row.measure}
    line = tuple(values.get(key, "") for key in columns.lines)
    column = values[columns.across]
    own = row.mean is not None or row.low is not None or bool(row.outcome)
    if own:
        yield line, column, row
    if row.paper_value is not None:
        paper = Row(setting=row.setting, measure=row.measure, outcome=f"{row.paper_value:g}")
        if columns.paper == "line":
            yield (*line[:-1], f"{line[-1]}, paper".lstrip(", ")), column, paper
        else:
            yield line, f"{column}, paper", paper


def _sizes(cells: dict[str, list[Row]]) -> str:
    numbers = dict.fromkeys(
        row.n for found in cells.values() for row in found if row.n and row.unit != "of n"
    )
    return ", ".join(map(str, numbers))


def _heading(key: str) -> str:
    return key[:1].upper() + key[1:]


def number(value: float, digits: int) -> str:
    """A number with a true minus sign."""
    return f"{value:,.{digits}f}".replace("-", "\N{MINUS SIGN}")


def markdown(header: list[str], body: list[list[str]]) -> str:
    """A pipe table."""
    lines = [header, ["---"] * len(header), *body]
    return "\n".join("| " + " | ".join(cell or " " for cell in line) + " |" for line in lines)


def read(name: str) -> Result:
    """One result file."""
    text = (RESULTS / f"{name}.json").read_text(encoding="utf-8")
    return Result.model_validate(json.loads(text))


def headlines() -> str:
    """The README's table, every number looked up in its result file."""
    text = (RESULTS / f"{HEADLINES}.json").read_text(encoding="utf-8")
    rows = Headlines.model_validate(json.loads(text)).rows
    body = [[row.question, row.answer.format(*map(look_up, row.references))] for row in rows]
    return markdown(["Question", "Measured"], body)


def look_up(reference: Reference) -> str:
    """The one value that a reference names."""
    result = read(reference.result)
    found = [
        row
        for row in result.rows
        if row.measure == reference.measure and reference.setting.items() <= row.setting.items()
    ]
    if len(found) != 1:
        raise LookupError(f"{reference}: {len(found)} values. Name exactly one.")
    return found[0].text(result.columns.digits.get(reference.measure, 2))


def block(name: str) -> str:
    """What stands between the two marks of a table."""
    if name == HEADLINES:
        return headlines() + "\n"
    result = read(name)
    notes = "".join(f"- {note}\n" for note in result.notes)
    title = f"**{result.title}**\n\n"
    return f"\n{title}{result.table()}\n\n{notes}{chr(10) * bool(notes)}{result.source(name)}\n\n"


def renewed(text: str) -> str:
    """A page with all its tables as their files say."""
    return _TABLE.sub(lambda found: found[1] + block(found[2]) + found[3], text)


def pages() -> list[Path]:
    """The README and every page of the documentation."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def placed() -> list[str]:
    """The names of all tables that stand in a page."""
    texts = [path.read_text(encoding="utf-8") for path in pages()]
    return [found[2] for text in texts for found in _TABLE.finditer(text)]


def main() -> None:
    """Write every table anew."""
    for path in pages():
        text = path.read_text(encoding="utf-8")
        if (new := renewed(text)) != text:
            path.write_text(new, encoding="utf-8")
            print(path.relative_to(ROOT))


if __name__ == "__main__":
    main()
