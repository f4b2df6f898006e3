"""Jobs without Ray, one after another, and each that runs code of others in a process of its own.

The standard library's server forks them: a fork of a process without threads and without a GPU
takes a fraction of a second, where a new interpreter would import torch for seconds.
"""

import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerProcess
from typing import NoReturn

from attacks import ATTACKS
from attacks.scheduling.jobs import Event, JobSpec, Listener, Progress, give_up, recorded
from attacks.scheduling.ledger import Ledger
from attacks.scheduling.prepared import Report
from attacks.scheduling.worker import GpuLost, run_job, silent
from fedsim.config.build import installed
from fedsim.config.named_code import is_named
from fedsim.defenses import DEFENSES
from fedsim.errors import FedsimError, StoreError
from fedsim.records import JobRecord
from fedsim.store.capture import CaptureStore
from fedsim.store.files import read_record
from fedsim.tasks import is_held
from fedsim.tasks.base import TaskSpec

STARTS = 3
"""A job that has no record after so many starts, and whose process then dies, has failed.

Half of it would take what the machine does, such as running out of memory, for the attack's doing;
twice it runs six times what will die again.
"""
_TICK = 0.2
"""Seconds between two looks at the clock while a job runs."""
_ANSWER = 60.0
"""Seconds to wait for the server that forks processes, from when it refuses. A killed one is
known to have ended long before; half or twice of it matters where no server can be started."""
_FORKS = get_context("forkserver")
_FORKS.set_forkserver_preload(["__main__", __name__])


class ProcessDied(FedsimError):
    """The process of a job ended without a record of it."""


def run(spec: JobSpec, report: Report = silent) -> list[JobRecord]:
    """Run a job here, or apart if it runs code of others or killed its process before.

    Raises:
        GpuLost: as ``run_job`` does.
        ProcessDied: the job killed its process.
        StoreError: the run folder cannot be written.
    """
    if spec.attempt >= STARTS or is_foreign(spec):
        return run_apart(spec, report)
    return run_job(spec, report)


def is_foreign(spec: JobSpec) -> bool:
    """Whether the job runs a class of another package: an attack, or what it is attacked with."""
    if spec.table["name"] not in ATTACKS:
        return True
    words = {value for value in spec.table.values() if isinstance(value, str)}
    if words & _added("fedsim.generators"):
        return True
    store = CaptureStore(spec.captures)
    try:
        task = read_record(spec.captures / "task.json", TaskSpec)
        chain = store.record(spec.keys[0]).knowledge.defense or ()
    except StoreError:  # which the job will say
        return False
    return (
        bool(task.added)
        or (bool(task.factory) and not is_held(spec.captures))
        or task.model in _added("fedsim.models")
        or is_named(task.model)
        or any(table["name"] not in (*DEFENSES, "none") for table in chain)
    )


def _added(group: str) -> set[str]:
    return {point.name for point in installed(group)}


def run_apart(spec: JobSpec, report: Report = silent) -> list[JobRecord]:
    """Run a job in a process of its own, which is killed if it exceeds budget and grace."""
    messages, sender = _FORKS.Pipe(duplex=False)
    process = _FORKS.Process(target=_work, args=(spec, dict(os.environ), sender))
    _start(process)
    sender.close()
    try:
        late = _follow(process, messages, spec, report)
    finally:
        _kill(process)
        messages.close()
    if (records := recorded(spec)) is not None:
        return records
    if late:
        return give_up(spec, "timeout", spec.demand.killed, spec.demand.budget + spec.demand.grace)
    raise ProcessDied(f"the attack ended its process ({_ending(process.exitcode or 0)})")


def _start(process: ForkServerProcess) -> None:
    """Fork the process; a server that a job has killed answers no more before it is known to end.

    Raises:
        ConnectionError, EOFError: the server does not answer for ``_ANSWER`` seconds.
    """
    since = time.monotonic()
    while True:
        try:
            return process.start()
        except (ConnectionError, EOFError):
            if time.monotonic() - since > _ANSWER:
                raise
            time.sleep(_TICK)


def _follow(
    process: ForkServerProcess, messages: Connection, spec: JobSpec, report: Report
) -> bool:
    """Pass on what a process reports until it ends; returns whether its time was over before."""
    sources: list[Connection | int] = [messages, process.sentinel]
    phase, since = "wait", time.monotonic()  # for the process to start
    while phase == "wait" or time.monotonic() - since <= spec.demand.budget + spec.demand.grace:
        ready = wait(sources, _TICK)
        if messages in ready:
            try:
                message = messages.recv()
            except (EOFError, OSError):  # the attack has closed it, and is then not followed
                sources.remove(messages)
                continue
            if isinstance(message, StoreError):
                raise message
            if message.phase != phase:
                phase, since = message.phase, time.monotonic()
            report(message)
        elif ready:
            return False
    return True


def _kill(process: ForkServerProcess) -> None:
    """Kill the process, and those that it has started."""
    assert process.pid is not None
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.kill()
    process.join()


def _ending(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    return f"signal {-code}, {signal.strsignal(-code)}"


def _work(spec: JobSpec, environment: dict[str, str], messages: Connection) -> NoReturn:
    """Run the job as the process that asks would, which alone hears Ctrl-C."""
    os.setsid()
    threading.Thread(target=_end_with_parent, daemon=True).start()
    os.environ.clear()
    os.environ.update(environment)

    def report(message: Progress) -> None:
        with suppress(OSError):  # the attack has closed it
            messages.send(replace(message, image=None))

    code = os.EX_SOFTWARE
    try:
        with suppress(GpuLost):  # its records are written, and this process ends anyway
            run_job(spec, report)
        code = 0
    except StoreError as error:  # of the run folder, and not of the attack
        messages.send(error)
    except BaseException:  # of what surrounds the attack, which it has broken
        traceback.print_exc()
    finally:
        with suppress(Exception):
            sys.stdout.flush()
        os._exit(code)


def _end_with_parent() -> None:
    """Kill the whole group as the process that asked for the job ends, be it killed."""
    parent = parent_process()
    assert parent is not None
    parent.join()
    os.killpg(0, signal.SIGKILL)


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
