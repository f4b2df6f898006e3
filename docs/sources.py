"""Which numbers of the result files no command makes: ``python -m docs.sources``.

A row names the value of the run that it prints, unless a command writes the whole file from the run
(``generator``); in older files it may say that it was mapped by hand (``BY_HAND``). A number of a
note needs a row of the same file that prints it, or stands in the experiment's own file or in the
paper. What older files lack is counted in ``unsourced.toml``, where no count may rise and no file
may be added; ``python -m docs.tables`` writes those that fell.
"""

import argparse
import re
import tomllib
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple, TypeAlias

import tomli_w

from docs.measured import HEADLINES, PAPERS, RESULTS, ResultFile, Row, read
from docs.progress import RUN, members
from experiments.plan.config import shipped
from fedsim.store.files import write_bytes

Exempt: TypeAlias = dict[str, dict[str, int]]
"""How many ``rows`` were mapped by hand, and numbers of ``notes`` lack a source, in each file."""
JOBS = "Jobs: "
"""How a note begins that is made of a run's jobs, and so needs no row."""
_DECIMAL = re.compile(r"(?<![\w.,])\d*\.\d+(?!\.?\d|[a-z])")
_COUNT = re.compile(r"(?<![\w.,])([\d,]+) of ([\d,]+)\b")
_WHOLE = re.compile(r"(?<![\w.,])([\d,]+) (?:(?:dB|s|CPU seconds|MB|times)\b|%)")
_LEVEL = 95.0
"""Of all intervals, in percent."""
_ANY = re.compile(r"(?<![\w.])\d[\d,_]*\.?\d*(?:e-?\d+)?|(?<![\w.])\.\d+")


class SourceGap(NamedTuple):
    """What no command makes in one file.

    Attributes:
        rows: mapped by hand.
        notes: the numbers themselves, as printed.
    """

    rows: list[Row]
    notes: list[str]


def gap(result: ResultFile) -> SourceGap:
    """What of a file no command makes."""
    if result.generator:
        return SourceGap([], [])
    rows = [row for row in result.rows if row.by_hand]
    return SourceGap(rows, list(_unsourced(result)))


def _unsourced(result: ResultFile) -> Iterator[str]:
    """Decimals, counts and whole numbers with a unit that no row and no experiment holds."""
    printed = [x for row in result.rows for x in (row.mean, row.low, row.high, row.paper_value)]
    values = [x for x in printed if x is not None]
    constants = {*_constants(result.command), *_papers(), _LEVEL}
    shares = {
        (round(row.mean * row.n), row.n)
        for row in result.rows
        if row.unit == "of n" and row.mean is not None and row.n
    }

    def printed_somewhere(text: str) -> bool:
        digits = len(text.partition(".")[2])
        number, half = float(text), 0.5000001 * 10.0**-digits
        return number in constants or any(
            abs(abs(scale * value) - number) <= half for value in values for scale in (1, 100)
        )

    for note in (note for note in result.notes if not note.startswith(JOBS)):
        yield from (text for text in _DECIMAL.findall(note) if not printed_somewhere(text))
        for hit, of in _COUNT.findall(note):
            if (int(hit.replace(",", "")), int(of.replace(",", ""))) not in shares:
                yield f"{hit} of {of}"
        for text in _WHOLE.findall(note):
            if not printed_somewhere(text.replace(",", "")):
                yield text


def _constants(command: str) -> set[float]:
    """All numbers of a command and of the experiments that it runs."""
    texts = [command]
    for name, _ in RUN.findall(command):
        for member in members(name) if name in shipped() else ():
            texts.append(shipped()[member].read_text(encoding="utf-8"))
    return {number for text in texts for number in _numbers(text)}


@cache
def _papers() -> frozenset[float]:
    """All numbers of the papers' cells."""
    texts = [path.read_text(encoding="utf-8") for path in sorted(PAPERS.glob("*.json"))]
    printed = [line for text in texts for line in re.findall(r'"paper": "(.*)"', text)]
    return frozenset(number for text in printed for number in _numbers(text))


def _numbers(text: str) -> Iterator[float]:
    yield from (float(number.replace(",", "").replace("_", "")) for number in _ANY.findall(text))


def names() -> list[str]:
    """The result files."""
    return sorted(path.stem for path in RESULTS.glob("*.json") if path.stem != HEADLINES)


def exempt() -> Exempt:
    """How many rows mapped by hand, and numbers of notes without a source, older files may have."""
    path = RESULTS / "unsourced.toml"
    table: Exempt = tomllib.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return {"rows": table.get("rows", {}), "notes": table.get("notes", {})}


def refusal(result: ResultFile, name: str) -> str:
    """Why a file must not be written; empty if it may."""
    lacking, allowed = gap(result), exempt()
    if len(lacking.rows) > allowed["rows"].get(name, 0):
        return f"{name}.json: {lacking.rows[0].setting} was mapped by hand. Name its source."
    if len(lacking.notes) > allowed["notes"].get(name, 0):
        return (
            f"{name}.json: no row prints what the notes say: {', '.join(lacking.notes)}. Add a row "
            "with a source for it, or leave it out."
        )
    return ""


def lowered() -> Exempt:
    """Today's counts where they are below those of the list."""
    allowed, now = exempt(), {name: gap(read(name)) for name in names()}
    rows = {name: min(n, len(now[name].rows)) for name, n in allowed["rows"].items() if name in now}
    notes = {
        name: min(n, len(now[name].notes)) for name, n in allowed["notes"].items() if name in now
    }
    return {
        "rows": {name: n for name, n in rows.items() if n},
        "notes": {name: n for name, n in notes.items() if n},
    }


def lower() -> None:
    """Write the counts that fell."""
    write_bytes(RESULTS / "unsourced.toml", tomli_w.dumps(lowered()).encode())


def summary() -> str:
    """One line: how many rows a command makes."""
    results = [read(name) for name in names()]
    measured = sum(row.measured for result in results for row in result.rows)
    lacking = [len(gap(result).rows) for result in results]
    return (
        f"{measured - sum(lacking):,} of {measured:,} measured rows name the value of the run that "
        f"they print; {sum(lacking):,}, in {sum(map(bool, lacking))} of {len(results)} files, were "
        "mapped by hand."
    )


def lines() -> list[list[str]]:
    """The files that lack any: rows mapped by hand of all measured ones, and numbers of notes."""
    table_lines = []
    for name in names():
        result = read(name)
        lacking = gap(result)
        if lacking.rows or lacking.notes:
            rows = sum(row.measured for row in result.rows)
            share = f"{len(lacking.rows)} of {rows}" if lacking.rows else "0"
            table_lines.append([f"`{name}`", share, str(len(lacking.notes))])
    return table_lines


def main() -> None:
    """Print what no command makes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--notes", metavar="NAME", help="print the numbers of this file's notes")
    asked = parser.parse_args()
    if asked.notes:
        print("\n".join(gap(read(asked.notes)).notes))
        return
    for name, rows, numbers in lines():
        print(f"{name:34} {rows:>12} rows {numbers:>5} numbers of notes")
    print(summary())


if __name__ == "__main__":
    main()
