"""A job as a Ray task: a generator of messages, with or without the run folder at hand."""

from __future__ import annotations

import os
import queue
import time
from collections.abc import Generator, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

from attacks.scheduling.isolation import run
from attacks.scheduling.jobs import JobSpec, Progress
from attacks.scheduling.parcel import Delivery, Reference, Unseen, deliver, unpack
from attacks.scheduling.worker import GpuLost
from fedsim.devices import machine

_REPORT_EVERY = 0.25
"""Seconds between two progress messages of one job."""
_LEAVING = 1.0
"""Seconds for the last message to leave before a process that has lost its GPU ends."""


def stream_job(
    spec: JobSpec, files: Mapping[str, Reference] | None = None
) -> Iterator[str | Progress | Delivery]:
    """``isolation.run`` as a generator: ``<process id>@<machine>``, then the progress, thinned.

    Args:
        spec: the job.
        files: references to the files that it reads, if it is to work without the run folder; the
            files that it wrote are then the last message.

    Raises:
        Unseen: there are no references, and the run folder is not here either.
    """
    yield f"{os.getpid()}@{machine()}"
    if files is None:
        if not (spec.captures / "task.json").is_file():
            raise Unseen
        lost = yield from _stream(spec)
    else:
        import ray

        got = dict(zip(files, ray.get(list(files.values())), strict=True))
        with TemporaryDirectory() as place:
            local = unpack(spec, got, Path(place))
            lost = yield from _stream(local)
            yield deliver(local, got)
    if lost:
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
