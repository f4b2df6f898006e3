"""From finished runs to a file of ``docs/results``: ``python -m docs.recorded RUN... --name NAME``.

A file that is not there yet gets a row for each attack, defense and measure, with its source. One
that is there keeps its words, the paper's values and its layout: a row with a ``source`` takes the
new value of that source, and where no row has one, all measured rows are made anew. A new file with
a number that names no source, in a row or a note, is refused (``docs.sources``). The source
``{"attack": "A less B", ...}`` is the paired difference of two attacks, and the measure ``exact``
the share of the examples that came back exactly; ``{"run": "2", ...}`` is of the second of several.
"""

import argparse
import json
import math
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from docs.measured import RESULTS, Columns, ResultFile, Row, read, significant
from docs.sources import JOBS, refusal
from docs.values import LABELS, Value, derived, jobs, values
from experiments.plan.config import shipped
from experiments.plan.folder import Run
from experiments.preview.manuals import opening
from fedsim.errors import ConfigError
from fedsim.store.files import read_json, write_bytes

CLOCK = "cpu-seconds.json"
UNTIMED = "CPU time is recorded by make results alone"
_DIGITS = {"dB": 1, "squared pixel": 4, "perplexity": 0}
_SILENT = re.compile(r" --(json|quiet)\b| --(out|engine|workers) \S+")


def record(
    run: Run, name: str, cpu_seconds: float | None, others: Sequence[Run] = ()
) -> ResultFile:
    """The result file of a run, or of several that one table shows.

    Args:
        run: reported; commit, date and machine are its own.
        name: of the file, whose words are kept if it is there.
        cpu_seconds: of all runs; None if they were not measured.
        others: reported too, by the same code.

    Raises:
        ConfigError: a row's ``source`` does not name one value, or only some rows have one.
    """
    old = read(name) if (RESULTS / f"{name}.json").exists() else None
    runs = [run, *others]
    measured = _numbered(map(values, runs))
    rows, columns = _tabulated(measured)
    if old is not None and any(row.source and not row.by_hand for row in old.rows):
        known = (measured, _numbered(map(derived, runs)))
        rows, columns = [_renewed(row, known, name) for row in old.rows], old.columns
    elif old is not None:
        rows = [_beside_paper(row, old.rows) for row in rows]
    provenance = read_json(run.root / "provenance.json")
    notes = [note for note in (old.notes if old else ()) if not note.startswith(JOBS)]
    if how := "; ".join(filter(None, map(jobs, runs))):
        notes.append(f"{JOBS}{how}.")
    return ResultFile(
        title=old.title if old else _title(run.plan.name),
        paper=old.paper if old else "",
        command="; ".join(map(_command, runs)),
        **origin(provenance, cpu_seconds),
        columns=columns,
        rows=tuple(rows),
        notes=tuple(notes),
    )


def origin(provenance: dict[str, Any], cpu_seconds: float | None = None) -> dict[str, Any]:
    """The fields of a result that tell when, of what and on what it was made."""
    return {
        "commit": next(iter(provenance["commits"].values()))[:7],
        "date": provenance["started"][:10],
        "seed": min(provenance["seeds"]),
        "machine": _machine(provenance),
        "cpu_seconds": cpu_seconds,
        "cpu_seconds_reason": UNTIMED if cpu_seconds is None else "",
    }


def spent(folder: Path) -> float | None:
    """CPU seconds of a run by ``docs.campaign``; None for others."""
    clock = folder / CLOCK
    return float(read_json(clock)["seconds"]) if clock.exists() else None


def write(result: ResultFile, name: str) -> Path:
    """Write ``docs/results/<name>.json``, without what is empty.

    Raises:
        ConfigError: a number names no source, in a file that is new or lacked fewer.
    """
    if why := refusal(result, name):
        raise ConfigError(why)
    table = result.model_dump(mode="json", exclude_defaults=True)
    path = RESULTS / f"{name}.json"
    write_bytes(path, (json.dumps(table, indent=1, ensure_ascii=False) + "\n").encode())
    return path


def _numbered(runs: Iterable[Iterable[Value]]) -> list[Value]:
    """The values of all runs; the label ``run`` counts the runs from 1."""
    return [
        value._replace(labels={**value.labels, "run": str(number)})
        for number, values_of_run in enumerate(runs, 1)
        for value in values_of_run
    ]


def _tabulated(measured: Sequence[Value]) -> tuple[list[Row], Columns]:
    """A row for each value, with its source; labels that never differ name no line."""
    varied = tuple(key for key in LABELS if len({value.labels[key] for value in measured}) > 1)
    lines = varied or ("attack",)
    rows = []
    for value in measured:
        setting = {key: value.labels[key] for key in lines}
        row = Row(
            setting=setting,
            measure=value.measure,
            outcome="none",
            unit=value.unit or "1",
            source={**setting, "measure": value.measure},
        )
        rows.append(_filled(row, value))
    digits = {value.measure: _DIGITS[value.unit] for value in measured if value.unit in _DIGITS}
    return rows, Columns(lines=lines, digits=digits)


def _filled(row: Row, value: Value) -> Row:
    """The row with a value of the run, in the row's own unit and five significant digits."""
    scale = 100 if row.unit == "percent" else 1
    if not math.isfinite(value.mean):
        return row.model_copy(update={"n": value.n, "mean": None, "outcome": "diverged"})
    mean, low, high = (
        significant(None if end is None else scale * end)
        for end in (value.mean, value.low, value.high)
    )
    measured = {"n": value.n, "mean": mean, "low": low, "high": high, "outcome": value.outcome}
    return row.model_copy(update=measured)


def _beside_paper(row: Row, old: Sequence[Row]) -> Row:
    """With the paper's value of the old row for the same setting and measure."""
    for other in old:
        if (other.setting, other.measure) == (row.setting, row.measure):
            return row.model_copy(update={"paper_value": other.paper_value})
    return row


def _renewed(row: Row, known: Sequence[Sequence[Value]], name: str) -> Row:
    """The row with the value of its source, in the first list that has any."""
    if row.source is None:
        return row
    if row.by_hand:
        raise ConfigError(f"{name}.json: {row.setting} was mapped by hand. Name its source.")
    fitting: list[Value] = []
    for values_of_run in known:
        fitting = fitting or [value for value in values_of_run if value.matches(row.source)]
    if len(fitting) != 1:
        near = (fitting or known[0])[0]
        raise ConfigError(
            f"{name}.json: the source {row.source} names {len(fitting)} values of the run. Name "
            f"one, such as {near.labels | {'measure': near.measure}}."
        )
    return _filled(row, fitting[0])


def _title(name: str) -> str:
    """The first sentence of the experiment's file."""
    path = shipped().get(name)
    return opening(path).rstrip(".") if path else name


def _command(run: Run) -> str:
    """What was typed first, without the options that change no number, and an audit after it."""
    command = typed(read_json(run.root / "provenance.json"))
    if not re.search(rf" {re.escape(run.plan.name)}\b(?!/)", command):  # gone on with by its folder
        command = f"fedsim run {run.plan.name}"
    audit = f"; fedsim audit runs/{run.plan.name}" * (run.root / "audit.json").exists()
    return command.replace("fedsim simulate", "fedsim run") + audit


def typed(provenance: dict[str, Any]) -> str:
    """The command that began a run, without the options that change no number."""
    return _SILENT.sub("", str(next(iter(provenance["commands"].values()))))


def _machine(provenance: dict[str, Any]) -> str:
    devices = {name for names in provenance["devices"].values() for name in names} - {"cpu"}
    return f"{provenance['cpus']} CPU cores, {', '.join(sorted(devices)) or 'no GPU'}"


def main() -> None:
    """Record the run that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="a folder")
    parser.add_argument("--name", help="of the file; that of the first experiment by default")
    asked = parser.parse_args()
    run, *others = map(Run.open, asked.runs)
    name = asked.name or run.plan.name
    times = [seconds for seconds in map(spent, asked.runs) if seconds is not None]
    total = round(sum(times), 1) if len(times) == len(asked.runs) else None
    print(write(record(run, name, total, others), name))


if __name__ == "__main__":
    main()
