"""Attack jobs as tasks on a Ray cluster."""

from __future__ import annotations

import os
import queue
import threading
import time
from collections import Counter, deque
from collections.abc import Generator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from attacks.scheduling.isolation import STARTS, ProcessDied, run
from attacks.scheduling.jobs import (
    Change,
    Event,
    JobSpec,
    Listener,
    Progress,
    check_fits,
    give_up,
    recorded,
)
from attacks.scheduling.ledger import Ledger
from attacks.scheduling.worker import GpuLost
from fedsim.errors import StoreError, message_of
from fedsim.process import machine
from fedsim.records import JobRecord

Stream: TypeAlias = Any
"""Ray's generator of the messages of one task; Ray has no types."""

_TICK = 0.2
"""Seconds between checks for new jobs and late ones while tasks run."""
_SILENCE = 10.0
"""Seconds after a worker was killed until its job is settled without an answer from Ray, which
takes a worker for alive while a process that it forked holds its connection. Half of it could cut
the records off that a busy machine still writes; twice it only waits longer."""


@dataclass(slots=True)
class _Running:
    """A job that was given to Ray.

    Attributes:
        phase: the phase that the worker last reported.
        since: ``time.monotonic()`` of the last change of phase.
        killed: ``time.monotonic()`` when it exceeded its time and was cancelled; 0 before.
    """

    spec: JobSpec
    phase: str = "wait"
    since: float = field(default_factory=time.monotonic)
    killed: float = 0.0

    @property
    def seconds(self) -> float:
        """Seconds in this phase; waiting for Ray or another worker's ``prepare`` counts as 0."""
        return 0.0 if self.phase == "wait" else time.monotonic() - self.since


class RayPool:
    """Runs attack jobs on Ray in the background.

    Ray's own retries are off. A job whose worker dies is started again, at most ``retries`` times
    in one command and ``STARTS`` times in all; a job that raises or exceeds budget and grace is
    not. Every job ends in records on disk, whatever happens to its worker; those of a dead worker
    are ``interrupted``, for a later command, and ``failed`` after the last start. All machines of
    the cluster share the run folder.

    Args:
        max_running: number of tasks handed to Ray at a time.
        on_event: called from the pool's thread, and from ``submit``.
        retry_failed: run jobs again that an earlier command did not finish; see ``Ledger.claim``.
    """

    def __init__(
        self,
        ledger: Ledger,
        *,
        max_running: int = 1,
        retries: int = 1,
        on_event: Listener = lambda event: None,
        retry_failed: bool = False,
    ) -> None:
        import ray

        self._ray = ray
        self._tasks = [  # in a process that is used again, and in one that is not
            ray.remote(num_returns="streaming", max_retries=0, max_calls=calls)(stream_job)
            for calls in (0, 1)
        ]
        self._ledger = ledger
        self._max_running, self._retries, self._retry_failed = max_running, retries, retry_failed
        self._on_event = on_event
        self._changed = threading.Condition()
        self._queue: deque[JobSpec] = deque()
        self._running: dict[Stream, _Running] = {}
        self._deaths: Counter[str] = Counter()
        self._jobs: dict[str, list[JobRecord] | None] = {}
        self._closed = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._work, name="attack-pool", daemon=True)
        self._thread.start()

    def __enter__(self) -> RayPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def submit(self, specs: Iterable[JobSpec]) -> None:
        """Take jobs and return at once; those submitted before or found on disk are not run.

        Raises:
            ConfigError: no machine of the cluster has what a job asks for.
        """
        specs = list(specs)
        for demand, label in {spec.demand: spec.label for spec in specs}.items():
            check_fits(demand, label, self._machines())
        for spec in specs:
            with self._changed:
                if spec.name in self._jobs:
                    continue
                records = self._ledger.claim(spec, retry_failed=self._retry_failed)
                self._jobs[spec.name] = records
                if records is None:
                    self._queue.append(spec)
                    self._changed.notify_all()
                change: Change = "queued" if records is None else "settled"
                self._on_event(Event(spec, change, None, tuple(records or ()), bool(records)))

    def drain(self) -> list[JobRecord]:
        """Wait until each job submitted so far has its records; returns them."""
        with self._changed:
            self._changed.wait_for(lambda: self._error or None not in self._jobs.values())
            if self._error:
                raise self._error
            return [record for records in self._jobs.values() for record in records or ()]

    def close(self) -> None:
        """Kill the running jobs; a later command runs them again."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join()
        for stream, job in self._running.items():
            self._ray.cancel(stream, force=True)
            self._ledger.requeue(job.spec, "the command was stopped")
        self._running.clear()

    def _machines(self) -> list[tuple[float, float]]:
        """CPUs and GPUs of each machine of the cluster."""
        machines = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        return [(machine.get("CPU", 0.0), machine.get("GPU", 0.0)) for machine in machines]

    def _work(self) -> None:
        try:
            while self._launch():
                self._collect()
        except BaseException as error:  # raised again in drain(), in the caller's thread
            with self._changed:
                self._error = error
                self._changed.notify_all()

    def _launch(self) -> bool:
        """Wait for work and hand it to Ray; False once the pool is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._queue or self._running)
            while not self._closed and self._queue and len(self._running) < self._max_running:
                spec = self._ledger.start(self._queue.popleft())
                self._running[self._start(spec)] = _Running(spec)
            return not self._closed

    def _start(self, spec: JobSpec) -> Stream:
        # A process that has used one GPU cannot change to another: GPU workers, which cost the
        # import of torch and CUDA, are used again only where a machine has just one.
        fresh = spec.demand.gpus > 0 and any(gpus > 1 for _, gpus in self._machines())
        task = self._tasks[int(fresh)]
        return task.options(num_cpus=spec.demand.cpus, num_gpus=spec.demand.gpus).remote(spec)

    def _collect(self) -> None:
        """Read the tasks' messages for one tick, then kill the late tasks."""
        # ``next`` of a cancelled stream blocks until its worker answers, which may be never.
        awaited = {
            stream.completed() if job.killed else stream: stream
            for stream, job in self._running.items()
        }
        ready, _ = self._ray.wait(list(awaited), num_returns=1, timeout=_TICK)
        for reference in ready:
            self._read(awaited[reference])
        now = time.monotonic()
        for stream, job in list(self._running.items()):
            demand = job.spec.demand
            if job.killed and now - job.killed > _SILENCE:
                self._end(stream, "the worker gave no answer")
            elif job.seconds > demand.budget + demand.grace and not job.killed:
                job.killed = now
                self._ray.cancel(stream, force=True)

    def _read(self, stream: Stream) -> None:
        job = self._running[stream]
        try:
            message = self._ray.get(next(stream))
        except StopIteration:
            self._end(stream, "the worker ended without a record")
        except self._ray.exceptions.RayTaskError as error:
            cause = error.cause
            if isinstance(cause, ProcessDied):
                self._end(stream, str(cause), died=True, apart=True)
            else:
                self._end(stream, f"{type(cause).__name__}: {message_of(cause)}")
        except self._ray.exceptions.RayError as error:
            fault = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
            self._end(stream, f"the worker died ({fault})", died=True)
        else:
            if isinstance(message, Progress):
                if message.phase != job.phase:
                    job.phase, job.since = message.phase, time.monotonic()
                self._on_event(Event(job.spec, "running", message))
            else:
                self._ledger.locate(job.spec, message)

    def _end(self, stream: Stream, fault: str, *, died: bool = False, apart: bool = False) -> None:
        """Settle a job by its records on disk: a worker may die after it wrote them.

        Args:
            stream: of the job.
            fault: what has happened.
            died: whether its process died.
            apart: whether that was a process of its own.
        """
        job = self._running.pop(stream)
        spec, records = job.spec, recorded(job.spec)
        if records is not None:
            self._settle(spec, records)
        elif job.killed:
            self._settle(spec, give_up(spec, "timeout", spec.demand.killed, job.seconds))
        elif died and spec.attempt >= STARTS:
            reason = f"{fault}, start {spec.attempt}"
            self._settle(spec, give_up(spec, "failed", reason, job.seconds))
        elif apart or (died and self._deaths[spec.name] < self._retries):
            self._deaths[spec.name] += died and not apart
            self._again(spec, fault)
        else:
            self._settle(spec, give_up(spec, "interrupted", fault, job.seconds))

    def _again(self, spec: JobSpec, reason: str) -> None:
        self._ledger.requeue(spec, reason)
        self._on_event(Event(spec, "queued"))
        self._queue.append(spec)

    def _settle(self, spec: JobSpec, records: list[JobRecord]) -> None:
        self._ledger.finish(spec, records)
        self._on_event(Event(spec, "settled", None, tuple(records)))
        with self._changed:
            self._jobs[spec.name] = records
            self._changed.notify_all()


_REPORT_EVERY = 0.25
"""Seconds between two progress messages of one job."""
_LEAVING = 1.0
"""Seconds for the last message to leave before a process that has lost its GPU ends."""


def stream_job(spec: JobSpec) -> Iterator[str | Progress]:
    """``isolation.run`` as a generator: ``<process id>@<machine>``, then the progress, thinned.

    Raises:
        StoreError: this machine does not see the run folder.
    """
    yield f"{os.getpid()}@{machine()}"
    if not (spec.captures / "task.json").is_file():
        raise StoreError(
            f"{spec.captures}: the machine {machine()} does not see it. Put the run into a folder "
            "that all machines of the cluster share."
        )
    if (yield from _stream(spec)):
        time.sleep(_LEAVING)
        os._exit(1)  # no later job of this process could use the GPU


def _stream(spec: JobSpec) -> Generator[Progress, None, bool]:
    """Run the job; returns whether the GPU was lost."""
    messages: queue.SimpleQueue[Progress | None] = queue.SimpleQueue()
    with ThreadPoolExecutor(1) as executor:
        job = executor.submit(run, spec, messages.put)
        job.add_done_callback(lambda _: messages.put(None))
        phase, shown = "", 0.0
        while (message := messages.get()) is not None:
            if message.phase != phase:
                phase, shown = message.phase, 0.0
                yield message
            elif time.monotonic() - shown >= _REPORT_EVERY:
                shown = time.monotonic()
                yield message
        error = job.exception()
        if error is None or isinstance(error, GpuLost):
            return error is not None
        raise error
