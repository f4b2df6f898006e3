"""How many of a run's jobs are settled: a run that was interrupted is scored as far as it got."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from experiments.plan.folder import Run
from experiments.stages.attack import jobs
from experiments.stages.integrity import check_cell
from fedsim.api.ledger import read_ledger
from fedsim.api.run import continuation
from fedsim.errors import StoreError
from fedsim.records import STATUSES, JobRecord
from fedsim.store.capture import read_keyed


class JobCounts(NamedTuple):
    """Jobs, one for each attack or control on a capture.

    Attributes:
        settled: those that ended and are not to be run again.
        planned: all of the experiment's.
    """

    settled: int
    planned: int

    def __str__(self) -> str:
        if self.settled == self.planned:
            return ""
        return f"partial: {self.settled} of {self.planned} jobs"


def progress(run: Run) -> JobCounts:
    """Check the files of a run, and count its jobs by their records.

    Raises:
        StoreError: none was ever attacked, a file was altered, or the record of a job that ended
            is missing.
    """
    settled = planned = 0
    ledger = run.root / "jobs.sqlite"
    ended = {
        (row.cell, row.label, row.round, row.client)
        for row in (read_ledger(ledger) if ledger.exists() else ())
        if row.state in STATUSES
    }
    for cell in run.cells:
        check_cell(cell)
        for spec in jobs(cell):
            planned += len(spec.keys)
            paths = [(key, spec.record_path(key)) for key in spec.keys]
            for key, path in paths:
                job = (spec.cell, spec.label, key.round, key.client)
                if job in ended and not path.exists():
                    raise StoreError(
                        f"{path}: the record of a job that ended is missing. "
                        f"Run fedsim attack {run.root} to make it again."
                    )
            records = [read_keyed(path, JobRecord, key) for key, path in paths if path.exists()]
            settled += sum(record.status != "interrupted" for record in records)
    if planned and not settled and not any(run.root.glob("*/guesses/*/*.json")):
        where = run.cells[0].folder / "guesses"
        raise StoreError(f"{where}: not attacked. {continuation(run.root)}")
    return JobCounts(settled, planned)


def scored_progress(provenance: Mapping[str, Any]) -> JobCounts:
    """As it was when the run was scored; older runs were scored whole."""
    return JobCounts(**(provenance.get("jobs") or {"settled": 0, "planned": 0}))
