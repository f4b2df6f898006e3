"""Attack jobs one after another, without Ray."""

from __future__ import annotations

from collections.abc import Iterable

from attacks.scheduling.isolation import STARTS, ProcessDied, run
from attacks.scheduling.jobs import Event, JobSpec, Listener, give_up
from attacks.scheduling.ledger import Ledger
from attacks.scheduling.worker import silent
from fedsim.records import JobRecord


def run_serial(
    specs: Iterable[JobSpec],
    ledger: Ledger,
    on_event: Listener = silent,
    *,
    retry_failed: bool = False,
) -> list[JobRecord]:
    """Run the jobs one after another; those with records on disk are not run.

    A built-in attack runs in this process, where nothing can kill it: it ends only when it obeys
    its budget. Code of others runs apart.
    """
    records: list[JobRecord] = []
    for spec in specs:
        settled = ledger.claim(spec, retry_failed=retry_failed)
        ended = settled or _run(spec, ledger, on_event)
        if settled is None:
            ledger.finish(spec, ended)
        on_event(Event(spec, "settled", None, tuple(ended), settled is not None))
        records += ended
    return records


def _run(spec: JobSpec, ledger: Ledger, on_event: Listener) -> list[JobRecord]:
    """Start the job, and start it again while its process dies."""
    started = ledger.start(spec)
    try:
        return run(started, lambda progress: on_event(Event(spec, "running", progress)))
    except ProcessDied as death:
        if started.attempt >= STARTS:
            return give_up(started, "failed", f"{death}, start {started.attempt}", 0.0)
        ledger.requeue(spec, str(death))
    return _run(spec, ledger, on_event)
