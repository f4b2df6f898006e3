"""An attack that harms the process around it, installed as a user's package is."""

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
from fedsim.store.capture import Observation
from fedsim.tasks.base import Task
from fedsim.types import Batch


class Unprintable(Exception):
    """Raises another error where it is printed."""

    def __str__(self) -> str:
        raise RuntimeError("no")

    __repr__ = __str__


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
    warnings.simplefilter("error")


def _return_from_a_fork() -> None:
    if copy := os.fork():
        os.waitpid(copy, 0)
        os._exit(4)


def _kill_parent() -> None:
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(600)


def _ignore_and_hang() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.pthread_sigmask(signal.SIG_BLOCK, {number})
    while True:
        time.sleep(1)


def _print() -> None:
    for _ in range(200):
        print("x" * 10_000)


def _leave_a_thread() -> None:
    threading.Thread(target=time.sleep, args=(600,)).start()


def _overwrite(observation: Observation) -> None:
    for tensors in (observation.sent, observation.received):
        for tensor in tensors.values():
            tensor.zero_()
        tensors.clear()


ACTS: dict[str, Callable[[], object]] = {
    "float64": lambda: torch.set_default_dtype(torch.float64),
    "meta-device": lambda: torch.set_default_device("meta"),
    "patched-torch": _patch_functions,
    "patched-fedsim": _patch_project,
    "flags": _set_flags,
    "seeds": _seed,
    "chdir": _leave,
    "environment": _clear,
    "output": _print,
    "thread": _leave_a_thread,
    "note": lambda: None,
    "exit": lambda: sys.exit(0),
    "unprintable": lambda: _raise(Unprintable()),
    "broken-json": _break_json,
    "closed-files": lambda: os.closerange(0, 1000),
    "_exit": lambda: os._exit(0),
    "segfault": lambda: ctypes.string_at(0),
    "parent": _kill_parent,
    "copy": _return_from_a_fork,
    "hang": _ignore_and_hang,
}
ZEROS, CLASS = torch.zeros(1, 3, 32, 32), torch.tensor([0])
GUESSES: dict[str, Callable[[], object]] = {
    "no-list": lambda: None,
    "no-guess": lambda: [None],
    "a-tensor": lambda: [ZEROS],
    "generator": lambda: (Reconstruction(Batch(ZEROS, CLASS)) for _ in range(1)),
    "too-many": lambda: [Reconstruction(Batch(ZEROS, CLASS))] * 2,
    "not-finite": lambda: [Reconstruction(Batch(ZEROS / 0, CLASS))],
    "float64-guess": lambda: [Reconstruction(Batch(ZEROS.double(), CLASS))],
    "whole-numbers": lambda: [Reconstruction(Batch(ZEROS.long(), CLASS))],
    "complex": lambda: [Reconstruction(Batch(ZEROS.to(torch.complex64), CLASS))],
    "meta": lambda: [Reconstruction(Batch(ZEROS.to("meta"), CLASS))],
    "sparse": lambda: [Reconstruction(Batch(ZEROS.to_sparse(), CLASS))],
    "an-array": lambda: [Reconstruction(Batch(ZEROS.numpy(), CLASS))],  # type: ignore[arg-type]
    "other-shape": lambda: [Reconstruction(Batch(torch.zeros(1, 1, 4, 4), CLASS))],
    "no-examples": lambda: [Reconstruction(Batch(ZEROS[:0], CLASS[:0]))],
    "many-examples": lambda: [Reconstruction(Batch(ZEROS.repeat(500, 1, 1, 1), CLASS.repeat(500)))],
    "beyond-range": lambda: [Reconstruction(Batch(ZEROS + 1e30, CLASS))],
    "no-class": lambda: [Reconstruction(Batch(ZEROS, CLASS + 999))],
    "float-class": lambda: [Reconstruction(Batch(ZEROS, CLASS + 0.5))],
    "fewer-classes": lambda: [Reconstruction(Batch(ZEROS.repeat(2, 1, 1, 1), CLASS))],
    "a-text": lambda: [Reconstruction(Batch(CLASS[None], CLASS, mask=CLASS[None]))],
    "gradient": lambda: [Reconstruction(Batch(ZEROS.clone().requires_grad_() * 2, CLASS))],
    "confidence": lambda: [Reconstruction(Batch(ZEROS, CLASS), confidence=("certified",) * 9)],
    "objective": lambda: [Reconstruction(Batch(ZEROS, CLASS), objective=float("nan"))],
    "steps": lambda: [Reconstruction(Batch(ZEROS, CLASS), steps=-1)],
    "trace": lambda: [Reconstruction(Batch(ZEROS, CLASS), trace=((0, 0.0, float("inf")),))],
    "scores": lambda: [Reconstruction(Batch(ZEROS, CLASS), scores=ZEROS)],
}
"""Guesses that are none, by name."""


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
        if self.act in GUESSES:
            return GUESSES[self.act]()  # type: ignore[return-value]
        if self.act == "overwrite":
            _overwrite(observations[0])
        else:
            ACTS[self.act]()
        shape = (1, *task.spec.input_shape)
        note = "\udc80" if self.act == "note" else self.act
        return [Reconstruction(Batch(torch.zeros(shape), torch.tensor([0])), note=note)]
