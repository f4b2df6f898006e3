"""The papers' tables beside ours, cell by cell: the files of ``docs/results/papers``."""

import json

from docs.measured import (
    DASH,
    PAPERS,
    Reference,
    ResultFile,
    Row,
    Strict,
    digits,
    named_row,
    number,
    read,
)

HEADER = [
    *("Table", "Cell", "Paper", "fedsim", "n", "95 % interval", "What differs"),
    *("Command", "CPU hours"),
]
_SHORT = 60
"""A longer command stands below the result's own table alone."""


class PaperCell(Strict):
    """One cell of a paper, or several of one line.

    Attributes:
        table: of the paper; those of one table follow each other.
        cell: which of its cells.
        paper: the paper's numbers, as printed there.
        references: our values for them, in the same order; none if it was not measured.
        differs: what differs, or why it was not measured.
    """

    table: str
    cell: str
    paper: str
    references: tuple[Reference, ...] = ()
    differs: str


class PaperTables(Strict):
    """What one paper reports, and what was measured here."""

    rows: tuple[PaperCell, ...]


def compared(name: str) -> list[list[str]]:
    """The lines of a paper's table, under ``HEADER``.

    Raises:
        LookupError: a reference names no value, or several.
    """
    lines, last = [], ""
    for cell in _cells(name):
        lines.append([cell.table if cell.table != last else "", *_line(cell)])
        last = cell.table
    return lines


def hours(name: str) -> str:
    """One line: the CPU time of the result files behind each of a paper's tables."""
    files: dict[str, set[str]] = {}
    for cell in _cells(name):
        files.setdefault(cell.table, set()).update(x.result for x in cell.references)
    parts = []
    for table, results in files.items():
        known = [read(result) for result in results]
        timed = [x for result in known if (x := _seconds(result)) is not None]
        missing = len(known) - len(timed)
        note = f" and {missing} of {len(known)} not recorded" * bool(missing)
        about = "about " * any(result.cpu_seconds is None for result in known)
        total = f"{about}{number(sum(timed) / 3600, 2)}{note}" if timed else "not recorded"
        if known:
            parts.append(f"{table} {total}")
    return f"CPU hours of these files: {'; '.join(parts)}."


def unmeasured() -> list[list[str]]:
    """The cells of all papers that nothing here stands beside: page, table, cell and reason."""
    return [
        [f"[{paper}]({paper}.md)", cell.table, cell.cell, cell.differs]
        for paper in sorted(path.stem for path in PAPERS.glob("*.json"))
        for cell in _cells(paper)
        if not cell.references
    ]


def _cells(name: str) -> tuple[PaperCell, ...]:
    text = (PAPERS / f"{name}.json").read_text(encoding="utf-8")
    return PaperTables.model_validate(json.loads(text)).rows


def _line(cell: PaperCell) -> list[str]:
    cells = [(named_row(reference), digits(reference)) for reference in cell.references]
    sizes = dict.fromkeys(str(row.n) for row, _ in cells if row.n)
    values = [_without_interval(row).text(places) for row, places in cells]
    intervals = [_interval(row, places) for row, places in cells]
    spread = " / ".join(intervals) if any(interval != DASH for interval in intervals) else DASH
    files = dict.fromkeys(reference.result for reference in cell.references)
    return [
        cell.cell,
        cell.paper,
        " / ".join(values) or "not measured",
        ", ".join(sizes) or DASH,
        spread,
        cell.differs,
        "; ".join(map(_command, files)) or DASH,
        "; ".join(map(_hours, files)) or DASH,
    ]


def _command(name: str) -> str:
    """What makes the result file, or the file's name if that is long."""
    command = read(name).command
    return f"`{command}`" if len(command) <= _SHORT else f"of `{name}`"


def _hours(name: str) -> str:
    result = read(name)
    seconds = _seconds(result)
    if seconds is None:
        return "not recorded"
    return f"{'about ' * (result.cpu_seconds is None)}{number(seconds / 3600, 2)}"


def _seconds(result: ResultFile) -> float | None:
    """CPU time as it was recorded, or about what it was."""
    return result.cpu_seconds_about if result.cpu_seconds is None else result.cpu_seconds


def _without_interval(row: Row) -> Row:
    return row.model_copy(update={"low": None, "high": None} if row.mean is not None else {})


def _interval(row: Row, places: int) -> str:
    return row.model_copy(update={"mean": None, "outcome": ""}).text(places)
