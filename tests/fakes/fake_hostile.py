"""An attack that harms the process around it, installed as a user's package is."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import random
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional as F

from attacks import ATTACKS
from attacks.base import Attack, Job, Reconstruction
from fedsim.capture import Observation
from fedsim.tasks.base import Task
from fedsim.types import Batch


class Unprintable(Exception):
    """Raises another error where it is printed."""

    def __str__(self) -> str:
        raise RuntimeError("no")

    __repr__ = __str__


class Beyond(BaseException):
    """An error that ``except Exception`` lets through."""


def _raise(error: BaseException) -> None:
    raise error


def _patch_functions() -> None:
    def zero(*_: object, **__: object) -> torch.Tensor:
        return torch.zeros((), requires_grad=True)

    for place, name in ((F, "cross_entropy"), (torch, "matmul"), (torch.Tensor, "sum")):
        setattr(place, name, zero)


def _patch_project() -> None:
    ATTACKS["prior_only"] = Hostile
    Attack.prepare = None  # type: ignore[method-assign, assignment]


def _break_json() -> None:
    json.dumps = json.loads = os.replace = None  # type: ignore[assignment]


def _seed() -> None:
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)


def _set_flags() -> None:
    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(3)
    torch.backends.cudnn.enabled = False
    torch.backends.cuda.matmul.allow_tf32 = True
    sys.setrecursionlimit(60)


def _leave() -> None:
    os.mkdir("gone")
    os.chdir("gone")
    os.rmdir("../gone")


def _clear() -> None:
    os.environ.clear()
    os.umask(0o777)
    warnings.simplefilter("error")


def _fork_and_die() -> None:
    if os.fork() == 0:
        os.setsid()
        if os.fork():
            os._exit(0)
        time.sleep(600)
    os._exit(4)


def _set_alarm() -> None:
    signal.alarm(1)
    time.sleep(600)


def _kill_parent() -> None:
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(600)


def _ignore_and_hang() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.pthread_sigmask(signal.SIG_BLOCK, {number})
    while True:
        time.sleep(1)


def _write_everywhere() -> None:
    for number in range(1, 64):
        with contextlib.suppress(OSError):
            os.write(number, b'0\n["load"]\n{}\n\xff\n[1, 2, 3, 4]\n')


def _recurse() -> None:
    _recurse()


def _print() -> None:
    for _ in range(200):
        print("x" * 10_000)


def _leave_a_thread() -> None:
    threading.Thread(target=time.sleep, args=(600,)).start()


ACTS: dict[str, Callable[[], object]] = {
    "float64": lambda: torch.set_default_dtype(torch.float64),
    "no-grad": lambda: torch.set_grad_enabled(False),
    "meta-device": lambda: torch.set_default_device("meta"),
    "patched-torch": _patch_functions,
    "patched-fedsim": _patch_project,
    "flags": _set_flags,
    "seeds": _seed,
    "chdir": _leave,
    "environment": _clear,
    "output": _print,
    "garbage": _write_everywhere,
    "thread": _leave_a_thread,
    "note": lambda: None,
    "exit": lambda: sys.exit(0),
    "beyond": lambda: _raise(Beyond("all")),
    "interrupt": lambda: _raise(KeyboardInterrupt()),
    "unprintable": lambda: _raise(Unprintable()),
    "surrogate": lambda: _raise(ValueError("bad \udc80 word")),
    "recursion": _recurse,
    "broken-json": _break_json,
    "closed-files": lambda: os.closerange(0, 1000),
    "_exit": lambda: os._exit(0),
    "segfault": lambda: ctypes.string_at(0),
    "sigkill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "alarm": _set_alarm,
    "parent": _kill_parent,
    "fork": _fork_and_die,
    "hang": _ignore_and_hang,
}


@dataclass(frozen=True)
class Hostile(Attack):
    """Does what ``act`` says, and guesses noise if it can still do that."""

    act: str = ""
    log: str = ""

    def reconstruct(
        self,
        observations: Sequence[Observation],
        task: Task,
        rngs: Sequence[torch.Generator],
        job: Job,
    ) -> list[Reconstruction]:
        with Path(self.log).open("a") as file:
            file.write(f"{os.getpid()}\n")
        ACTS[self.act]()
        shape = (1, *task.spec.input_shape)
        note = "\udc80" if self.act == "note" else self.act
        return [Reconstruction(Batch(torch.zeros(shape), torch.tensor([0])), note=note)]
