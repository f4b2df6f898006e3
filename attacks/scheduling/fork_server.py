"""A process that has imported fedsim and forks a child for each job that runs apart.

``python -m attacks.scheduling.fork_server STATUS PROGRESS``, the numbers of two inherited pipes. A
fork of a process without threads and without a GPU takes a fraction of a second; a new interpreter
would import torch for seconds.
"""

from __future__ import annotations

import ctypes
import math
import os
import select
import signal
import sys
from contextlib import suppress
from json import dumps, loads
from pathlib import Path
from typing import Any, NoReturn

from pydantic import TypeAdapter

from attacks.scheduling.jobs import JobSpec, Progress
from attacks.scheduling.worker import GpuLost, run_job
from fedsim.build import installed
from fedsim.errors import StoreError, message_of

FAULT = "fault"
"""The phase of a message whose text says why the job has no record."""
_DEATH_SIGNAL, _SUBREAPER = 1, 36
"""Options of Linux's ``prctl``: die with the parent, and inherit the children of a dead child."""


def serve() -> None:
    """Run a job for each line of stdin; at its end, all that descends from this process dies."""
    status, progress = map(int, sys.argv[1:])
    _control(_SUBREAPER, 1)
    deaths = _deaths()
    while line := _line():
        child = os.fork()
        if child == 0:
            os.close(status)
            _work(loads(line), progress)
        code = _wait(child, deaths)
        _kill_descendants(child)
        if code is None:
            return
        os.write(status, f"{code}\n".encode())


def _control(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _deaths() -> int:
    """A pipe that can be read whenever a child has died."""
    read, write = os.pipe()
    os.set_blocking(write, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(write)
    return read


def _line() -> bytes:
    """The next request; empty at the end of stdin."""
    line = b""
    while not line.endswith(b"\n") and (part := os.read(0, 1 << 16)):
        line += part
    return line


def _wait(child: int, deaths: int) -> int | None:
    """The exit code of the child, negative for a signal; None if stdin ends before."""
    while True:
        ready, _, _ = select.select([0, deaths], [], [])
        if deaths in ready:
            os.read(deaths, 1 << 12)
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        if 0 in ready:
            return None


def _kill_descendants(child: int) -> None:
    """Kill what a job leaves: a process of its own group, or one that has left it."""
    with suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    listed = Path(f"/proc/self/task/{os.getpid()}/children")
    with suppress(ChildProcessError):
        while True:
            for pid in listed.read_text().split() if listed.exists() else []:
                os.kill(int(pid), signal.SIGKILL)
            os.waitpid(-1, 0)


def _work(request: dict[str, Any], progress: int) -> NoReturn:
    """Run the job as the process that asks would, but at the head of a group of its own."""
    code = os.EX_SOFTWARE
    try:
        _control(_DEATH_SIGNAL, signal.SIGKILL)
        os.setpgid(0, 0)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.chdir(request["folder"])
        os.environ.clear()
        os.environ.update(request["environment"])
        sys.path[:] = request["path"]
        spec = TypeAdapter(JobSpec).validate_python(request["spec"])
        for point in installed("fedsim.attacks"):
            if point.name == spec.table["name"]:
                with suppress(BaseException):  # what it changes at its import is for its jobs
                    point.load()

        def report(message: Progress) -> None:
            _tell(progress, message.phase, message.step, message.objective, message.text[:1000])

        with suppress(GpuLost):  # its records are written, and this process ends anyway
            run_job(spec, report)
        code = 0
    except StoreError as error:  # of the run folder, and not of the attack
        _tell(progress, FAULT, text=str(error))
        code = os.EX_IOERR
    except BaseException as error:  # of what surrounds the attack, which it has broken
        _tell(progress, FAULT, text=f"{type(error).__name__}: {message_of(error)}")
    finally:
        with suppress(Exception):
            sys.stdout.flush()
        os._exit(code)


def _tell(
    progress: int, phase: str, step: int = 0, objective: float = math.nan, text: str = ""
) -> None:
    with suppress(OSError):  # the attack has closed it, and is then not followed
        os.write(progress, dumps([phase, step, float(objective), text]).encode() + b"\n")


if __name__ == "__main__":
    serve()
