"""The Markdown tables that are made from the measured results.

A table stands in a page between ``<!-- table: NAME -->`` and ``<!-- end -->``; NAME is a file of
``docs/results``, or of its folder ``papers``. ``python -m docs.tables`` writes every table anew.
"""

import re
from collections.abc import Iterator
from pathlib import Path

from docs import claims
from docs.compared import HEADER, compared, hours, unmeasured
from docs.measured import (
    BY_HAND,
    DASH,
    HEADLINES,
    ROOT,
    Columns,
    Headline,
    ResultFile,
    Row,
    look_up,
    named_row,
    read,
    read_headlines,
)
from docs.probes import stale
from docs.progress import progress, rows
from docs.sources import gap, lines, lower, summary

_TABLE = re.compile(r"(<!-- table: ([\w/-]+) -->\n).*?(<!-- end -->)", re.DOTALL)

PROGRESS = "progress"
SOURCES = "sources"
UNMEASURED = "unmeasured"
PAPERS = "papers/"

Cells = dict[tuple[str, ...], dict[str, list[Row]]]


def table(result: ResultFile) -> str:
    """The Markdown table alone."""
    lines, across, cells = _grid(result)
    sizes = {line: _sizes(cells[line]) for line in lines}
    one_size = len({*sizes.values(), ""}) <= 2  # said once, below the table
    body = []
    for line in lines:
        values = [
            " ".join(row.text(result.columns.digits.get(row.measure, 2)) for row in entries)
            if (entries := cells[line].get(column))
            else DASH
            for column in across
        ]
        body.append([*line, *values, *([] if one_size else [sizes[line] or DASH])])
    header = [*(_heading(key) for key in result.columns.lines), *across]
    return markdown([*header, *([] if one_size else ["n"])], body)


def source(result: ResultFile, name: str) -> str:
    """The line below the table: how the numbers were measured."""
    sizes = {_sizes(cells) for cells in _grid(result)[2].values()} - {""}
    n = f"n = {sizes.pop()}; " if len(sizes) == 1 else ""
    seed = "secret seeds" if result.seed is None else f"seed {result.seed}"
    took = result.cpu_seconds_reason
    if result.cpu_seconds is not None:
        took = f"{result.cpu_seconds:,.0f} CPU seconds"
    elif result.cpu_seconds_about is not None:
        took = f"about {result.cpu_seconds_about:,.0f} CPU seconds, {took}"
    copied = gap(result).rows
    runs = ", ".join(dict.fromkeys(row.source[BY_HAND] for row in copied if row.source))
    measured = sum(row.measured for row in result.rows)
    by_hand = f" {len(copied)} of its {measured} values were mapped by hand at {runs}."
    return (
        f"`{result.command}`; {n}{seed}; {result.machine}; {took}; "
        f"commit {result.commit} of {result.date}. Data: `docs/results/{name}.json`."
        f"{by_hand if copied else ''}{stale(name)}"
    )


def _grid(result: ResultFile) -> tuple[list[tuple[str, ...]], list[str], Cells]:
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
    has_value = row.measured or bool(row.outcome)
    if has_value:
        yield line, column, row
    if row.paper_value is not None:
        printed = paper_number(row.paper_value, row.unit)
        paper = Row(setting=row.setting, measure=row.measure, outcome=printed)
        if columns.paper == "line":
            yield (*line[:-1], f"{line[-1]}, paper".lstrip(", ")), column, paper
        else:
            yield line, f"{column}, paper", paper


def paper_number(value: float, unit: str) -> str:
    """With the paper's own digits, and at least two where it is no percentage."""
    return f"{value:g}" if unit == "percent" else max(f"{value:g}", f"{value:.2f}", key=len)


def _sizes(cells: dict[str, list[Row]]) -> str:
    numbers = dict.fromkeys(
        row.n for rows in cells.values() for row in rows if row.n and row.unit != "of n"
    )
    return ", ".join(map(str, numbers))


def _heading(key: str) -> str:
    return key[:1].upper() + key[1:]


def markdown(header: list[str], body: list[list[str]]) -> str:
    """A pipe table."""
    lines = [header, ["---"] * len(header), *body]
    return "\n".join("| " + " | ".join(cell or " " for cell in line) + " |" for line in lines)


def headlines() -> str:
    """The README's table, every number looked up in its result file."""
    body = [
        [row.question, _victims(row), row.answer.format(*map(look_up, row.references))]
        for row in read_headlines().rows
    ]
    return markdown(["Setting", "n", "Recovered"], body)


def _victims(row: Headline) -> str:
    """The number of examples that the line's first value rests on."""
    return look_up(row.victims) if row.victims else str(named_row(row.references[0]).n)


def block(name: str) -> str:
    """What stands between the two marks of a table."""
    if name == HEADLINES:
        return headlines() + "\n"
    if name == PROGRESS:
        return _standing()
    if name == SOURCES:
        return _sources()
    if name == UNMEASURED:
        header = ["Paper", "Table", "Cell", "Why not measured"]
        return f"\n{markdown(header, unmeasured())}\n\n"
    if name == claims.CLAIMS:
        return f"\n{markdown(claims.HEADER, claims.rows())}\n\n"
    if name.startswith(PAPERS):
        paper = name.removeprefix(PAPERS)
        return f"\n{markdown(HEADER, compared(paper))}\n\n{hours(paper)}\n\n"
    result = read(name)
    notes = "".join(f"- {note}\n" for note in result.notes)
    title = f"**{result.title}**\n\n"
    return f"\n{title}{table(result)}\n\n{notes}{chr(10) * bool(notes)}{source(result, name)}\n\n"


def _standing() -> str:
    """How many experiments are measured, and the table of what is left."""
    remaining = rows()
    return (
        f"\n{len(progress().done)} experiments have a result file at their size; "
        f"{len(remaining)} are left.\n\n"
        f"{markdown(['Experiment', 'Measured smaller in'], remaining)}\n\n"
    )


def _sources() -> str:
    """The table of files with numbers that no command makes."""
    header = ["Result file", "Values mapped by hand", "Numbers of notes without a source"]
    return f"\n{summary()}\n\n{markdown(header, lines())}\n\n"


def renewed(text: str) -> str:
    """A page with all its tables as their files say."""
    return _TABLE.sub(lambda match: match[1] + block(match[2]) + match[3], text)


def pages() -> list[Path]:
    """The README and every page of the documentation."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def placed() -> list[str]:
    """The names of all tables that stand in a page."""
    texts = [path.read_text(encoding="utf-8") for path in pages()]
    return [match[2] for text in texts for match in _TABLE.finditer(text)]


def main() -> None:
    """Write every table anew, and how many numbers no command makes."""
    lower()
    for path in pages():
        text = path.read_text(encoding="utf-8")
        if (new := renewed(text)) != text:
            path.write_text(new, encoding="utf-8")
            print(path.relative_to(ROOT))


if __name__ == "__main__":
    main()
