"""Jobs that run code of others: each in a process of its own, which may do what it likes."""

from __future__ import annotations

import atexit
import errno
import json
import os
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress
from typing import get_args

from pydantic import TypeAdapter

from attacks import ATTACKS
from attacks.scheduling import fork_server
from attacks.scheduling.jobs import JobSpec, Phase, Progress, give_up, recorded
from attacks.scheduling.prepared import Report
from attacks.scheduling.worker import run_job, silent
from fedsim.build import installed
from fedsim.capture import CaptureStore
from fedsim.defenses import DEFENSES
from fedsim.errors import FedsimError, StoreError
from fedsim.files import read_record, write_bytes
from fedsim.named_code import is_named
from fedsim.records import JobRecord
from fedsim.tasks import is_held
from fedsim.tasks.base import TaskSpec

STARTS = 3
"""A job that has no record after so many starts, and whose process then dies, has failed.

Half of it would take what the machine does, such as running out of memory, for the attack's doing;
twice it runs six times what will die again.
"""
_TICK = 0.2
"""Seconds between two looks at the clock while a job runs."""
_LINE = 1 << 20
"""Bytes of a report without an end after which it is dropped."""


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
    global _server
    if _server is None:
        _server = _Server()
        atexit.register(stop)
    try:
        code, fault = _server.run(spec, report)
    except ProcessDied:
        stop()
        if (records := recorded(spec)) is not None:  # it was written before
            return records
        raise
    except BaseException:
        stop()
        raise
    if code is None:
        stop()
    records = recorded(spec)
    if records is not None:
        return records
    if code is None:
        return give_up(spec, "timeout", spec.demand.killed, spec.demand.budget + spec.demand.grace)
    if fault and code == os.EX_IOERR:
        if _takes_files(spec, fault):
            raise ProcessDied("the attack broke its process (it cannot write files any more)")
        raise StoreError(fault)
    if fault and code == os.EX_SOFTWARE:
        raise ProcessDied(f"the attack broke its process ({fault})")
    raise ProcessDied(f"the attack ended its process ({_ending(code)})")


def _takes_files(spec: JobSpec, fault: str) -> bool:
    """Whether it was the job alone that could not write, having lowered its limits, for example."""
    if any(os.strerror(full) in fault for full in (errno.ENOSPC, errno.EDQUOT)):
        return False  # it may still take a smaller file
    path = spec.record_path(spec.keys[0]).with_suffix(".probe")
    try:
        write_bytes(path, b"", sync=False)
        path.unlink()
    except (StoreError, OSError):
        return False
    return True


def stop() -> None:
    """Kill the job that runs apart, and all that it has started."""
    global _server
    if _server is not None:
        _server.close()
        _server = None
        atexit.unregister(stop)


class _Server:
    """The fork server of this process, which runs one job at a time."""

    def __init__(self) -> None:
        (self._status, status), (self._progress, progress) = os.pipe(), os.pipe()
        path = os.pathsep.join(os.path.abspath(folder) for folder in sys.path)
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", fork_server.__name__, str(status), str(progress)],
            stdin=subprocess.PIPE,
            pass_fds=(status, progress),
            start_new_session=True,  # so that Ctrl-C comes to this process alone
            env={**os.environ, "PYTHONPATH": path},
        )
        os.close(status)
        os.close(progress)
        self._watched = [self._status, self._progress]
        self._rest, self._fault = b"", ""

    def run(self, spec: JobSpec, report: Report) -> tuple[int | None, str]:
        """The exit code of the job's process, None if its time is over; and what it says of it.

        Raises:
            ProcessDied: it has killed this server.
        """
        self._fault = ""
        self._send(spec)
        phase, since = "wait", time.monotonic()  # for the server to start
        while True:
            ready, _, _ = select.select(self._watched, [], [], _TICK)
            for progress in self._read() if self._progress in ready else ():
                if progress.phase != phase:
                    phase, since = progress.phase, time.monotonic()
                report(progress)
            if ready == [self._status]:  # and nothing more was reported
                if word := os.read(self._status, 64):
                    return int(word), self._fault
                raise ProcessDied("the attack ended all processes around it")
            late = time.monotonic() - since > spec.demand.budget + spec.demand.grace
            if late and phase != "wait":
                return None, ""

    def _send(self, spec: JobSpec) -> None:
        request = {
            "spec": TypeAdapter(JobSpec).dump_python(spec, mode="json"),
            "folder": os.getcwd(),
            "environment": dict(os.environ),
            "path": sys.path,
        }
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise ProcessDied("the process that starts those of attacks is gone") from None

    def _read(self) -> list[Progress]:
        """What the job has reported; lines that are no report are left out."""
        part = os.read(self._progress, 1 << 16)
        if not part:  # all who could write have ended
            self._watched = [self._status]
        *lines, rest = (self._rest + part).split(b"\n")
        self._rest = rest if len(rest) < _LINE else b""
        reports = []
        for line in lines:
            with suppress(ValueError, TypeError):  # an attack may write anything anywhere
                phase, step, objective, text = json.loads(line)
                if phase == fork_server.FAULT:
                    self._fault = str(text)
                elif phase in get_args(Phase):
                    text = str(text).encode(errors="replace").decode()
                    reports.append(Progress(phase, int(step), float(objective), text))
        return reports

    def close(self) -> None:
        """End the server, which kills its job."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.close()
            self._process.wait(timeout=5)
        except (OSError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait()
        os.close(self._status)
        os.close(self._progress)


_server: _Server | None = None


def _ending(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    return f"signal {-code}, {signal.strsignal(-code)}"
