"""Make every result that is missing: ``python -m docs.campaign``, or ``make results``.

The experiments that no file of ``docs/results`` holds at their size are run, the cheapest first,
each in one process of one thread, and recorded. What was interrupted goes on where it stood when
the same command is given again.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

from docs import tables
from docs.measured import ROOT
from docs.progress import (
    CpuTime,
    cheapest_first,
    estimates,
    keep_estimates,
    needs,
    progress,
)
from docs.recorded import CLOCK, record, spent, write
from experiments.plan.folder import Run
from experiments.wording.names import duration
from fedsim.errors import FedsimError
from fedsim.files import write_json

RUNS = Path("runs")
PAGE = ROOT / "docs" / "results" / "progress.md"
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
_RECORDING = Lock()


class Ended(NamedTuple):
    """How a command ended.

    Attributes:
        seconds: CPU time, that of its own child processes included.
        share: CPU time by wall time: below 1 where other work has the cores.
    """

    status: int
    output: str
    seconds: float
    share: float


def command(*words: str) -> Ended:
    """Run ``fedsim`` in a process of its own."""
    started = time.monotonic()
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
    share = min(1.0, seconds / (time.monotonic() - started))
    return Ended(process.returncode, output, seconds, share)


def expect(name: str) -> CpuTime | None:
    """The CPU time that ``fedsim show`` expects; None if it cannot say so yet."""
    shown = command(
        "show", name, "--json", "--workers", "1", "--set", "federation.engine=in-process"
    )
    if shown.status:
        return None
    costs = [part["cost"]["time"] for part in json.loads(shown.output)["experiments"]]
    timed = sum(cost[part] for cost in costs for part in ("simulation", "attacks", "quick"))
    budget = sum(cost["budget"] for cost in costs)
    return CpuTime(round(shown.share * timed + budget, 1), budget > 0)


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


def ready(names: Sequence[str], minutes: float) -> list[str]:
    """The experiments that can start and take no longer, cheapest first; estimates what is new."""
    can = [n for n in names if all((RUNS / need / "provenance.json").exists() for need in needs(n))]
    for name in can:
        if name not in estimates() and (expected := expect(name)):
            keep_estimates({**estimates(), name: expected})
            print(f"{name}: {expected.text()} expected", flush=True)
    known = estimates()
    return [n for n in cheapest_first(can) if n in known and known[n].seconds <= 60 * minutes]


def main(arguments: Sequence[str] | None = None) -> None:
    """Estimate what has no estimate, then run what is missing."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="of experiments; all that are missing by default")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="leave longer ones")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="at a time")
    parser.add_argument("--estimate", action="store_true", help="run nothing")
    asked = parser.parse_args(arguments)
    missing = asked.names or progress().remaining
    missing += [need for name in missing for need in needs(name) if not (RUNS / need).exists()]
    tried: set[str] = set()
    # Trained weights that one pass makes let the next one start more.
    while now := [name for name in ready(missing, asked.minutes) if name not in tried]:
        tables.main()
        tried.update(now)
        if not asked.estimate:
            with ThreadPoolExecutor(asked.jobs) as pool:
                for said in pool.map(make, now):
                    print(said, flush=True)


if __name__ == "__main__":
    main()
