"""The table of architectures: ``python -m benchmarks families --json | python -m docs.benched``.

Title, paper and notes are those of the file; every row is written anew.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator

from benchmarks.bench_families import FamilyRow
from docs.measured import Columns, ResultFile, Row, read
from docs.recorded import write

NAME = "families"
_COMMAND = "python -m benchmarks families"
_MEASURES = {
    "factored gradient": "gradient from factors: error",
    "span, B = 1": "`span`, B = 1",
    "span, B = 4": "B = 4",
    "span, B = 4, frozen": "B = 4, embeddings frozen",
    "span, LoRA r = 64": "LoRA r = 64",
    "film with spans": "FILM with spans",
    "LAMP": "LAMP: 2 steps",
    "TAG": "TAG: 2 steps",
    "DLGText": "DLG: 2 steps",
    "LTI": "LTI",
}


def families(measured: list[FamilyRow]) -> ResultFile:
    """The result file of all architectures."""
    old = read(NAME)
    head = ["git", "rev-parse", "--short=7", "HEAD"]
    return ResultFile(
        title=old.title,
        paper=old.paper,
        command=_COMMAND,
        commit=subprocess.run(head, capture_output=True, text=True, check=True).stdout.strip(),
        date=time.strftime("%Y-%m-%d", time.gmtime()),
        seed=0,
        machine=f"{os.cpu_count()} CPU cores, no GPU",
        cpu_seconds=round(sum(row.seconds for row in measured)),
        columns=Columns(lines=("architecture",)),
        rows=tuple(row for each in measured for row in _rows(each)),
        notes=old.notes,
        generator=f"{_COMMAND} --json | python -m docs.benched",
    )


def _rows(measured: FamilyRow) -> Iterator[Row]:
    setting, measure = {"architecture": measured.family}, _MEASURES[measured.attack]
    if measured.exact is not None:
        n, share = measured.sentences, measured.exact / measured.sentences
        yield Row(setting=setting, measure=measure, n=n, mean=share, unit="of n")
        return
    outcome = "runs" if measured.error is None else f"{measured.error:.0e}"
    reason = f"no: {measured.reason}" if measured.reason else ""
    yield Row(setting=setting, measure=measure, outcome=reason or outcome)


def main() -> None:
    """Record the rows that come in."""
    print(write(families([FamilyRow(**row) for row in json.load(sys.stdin)]), NAME))


if __name__ == "__main__":
    main()
