"""Make every result that is missing: ``python -m docs.campaign``, or ``make results``.

The experiments that no file of ``docs/results`` holds at their size are run, each in one
process of one thread, and recorded. What was interrupted goes on where it stood when
the same command is given again.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

from docs import tables
from docs.measured import ROOT
from docs.progress import needs, progress
from docs.recorded import CLOCK, record, spent, write
from experiments.plan.folder import Run
from experiments.wording.names import duration
from fedsim.errors import FedsimError
from fedsim.store.files import write_json

RUNS = Path("runs")
PAGE = ROOT / "docs" / "results" / "progress.md"
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
_RECORDING = Lock()


class Ended(NamedTuple):
    """How a command ended.

    Attributes:
        seconds: CPU time, that of its own child processes included.
    """

    status: int
    output: str
    seconds: float


def command(*words: str) -> Ended:
    """Run ``fedsim`` in a process of its own."""
    process = subprocess.Popen(
        [sys.executable, "-m", "experiments.cli", *words],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **_ONE_THREAD},
    )
    assert process.stdout is not None
    output = process.stdout.read()
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    seconds = used.ru_utime + used.ru_stime
    return Ended(process.returncode, output, seconds)


def make(name: str) -> str:
    """Run an experiment to its end and record it; returns what to tell."""
    folder = RUNS / name
    ran = command("run", name, "--engine", "in-process", "--json")
    seconds = ran.seconds + (spent(folder) or 0.0)
    if (folder / "experiment.toml").exists():
        write_json(folder / CLOCK, {"seconds": seconds})
    outcome: dict[str, Any] = json.loads(ran.output) if ran.output else {"interrupted": 0}
    if ran.status not in (0, 1) or outcome["interrupted"] or not outcome.get("report"):
        return f"{name}: not finished, ended with status {ran.status}"
    with _RECORDING:
        try:
            write(record(Run.open(folder), name, round(seconds, 1)), name)
            publish(name)
        except FedsimError as error:
            return f"{name}: not recorded: {error}"
        except LookupError as error:  # a page repeats a value that the file no longer has
            return f"{name}: recorded, but the tables are not written: {error}"
    return f"{name}: {duration(seconds)} of CPU time"


def publish(name: str) -> None:
    """Write all tables anew; one that stands in no page goes to the end of the page of progress."""
    if name not in tables.placed():
        with PAGE.open("a", encoding="utf-8") as page:
            page.write(f"\n<!-- table: {name} -->\n<!-- end -->\n")
    tables.main()


def ready(names: Sequence[str]) -> list[str]:
    """The experiments whose weights are trained, by name."""
    return sorted({name for name in names if not unmade(name)})


def unmade(name: str) -> list[str]:
    """The experiments that have to be run before this one."""
    return [need for need in needs(name) if not (RUNS / need / "provenance.json").exists()]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run what is missing."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="of experiments; all that are missing by default")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="at a time")
    asked = parser.parse_args(arguments)
    missing = asked.names or progress().remaining
    missing += [need for name in missing for need in unmade(name)]
    tried: set[str] = set()
    # Trained weights that one pass makes let the next one start more.
    while now := [name for name in ready(missing) if name not in tried]:
        tried.update(now)
        with ThreadPoolExecutor(asked.jobs) as pool:
            for said in pool.map(make, now):
                print(said, flush=True)


if __name__ == "__main__":
    main()
