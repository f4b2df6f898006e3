"""Tensors that an attack learns once, stored under the hash of everything they depend on."""

import fcntl
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeAlias

import torch
from torch import Tensor

from attacks.base import Attack, Job
from attacks.scheduling.jobs import JobSpec, Progress
from fedsim.errors import StoreError
from fedsim.knowledge import Knowledge
from fedsim.seeds import derive
from fedsim.store.capture import CaptureRecord, CaptureStore, Observation
from fedsim.store.files import Sealed, digest, load_tensors, read_record, save_tensors, write_json
from fedsim.store.plain_files import open_lock
from fedsim.tasks.base import Task
from fedsim.types import Tensors

Report: TypeAlias = Callable[[Progress], None]

_DRAWN = {(1,), (3,)}
"""Channels of a guess that can be drawn."""
_DRAWN_EVERY = 0.5
"""Seconds between two pictures of a guess that forms."""


class PreparedRecord(Sealed):
    """The sidecar of the learned tensors, written last; ``seconds`` is the time to learn them."""

    attack: str
    sha256: str
    order: tuple[str, ...]
    seconds: float


def prepare(
    spec: JobSpec,
    attack: Attack,
    seen: Observation,
    task: Task,
    device: torch.device,
    report: Report,
) -> Tensors | None:
    """The attack's learned tensors for these weights and this defense, from disk or learned now.

    The attack gets the observation without the facts that differ between clients of a round, which
    are not part of the hash either, so that the order of the clients does not matter.
    """
    if type(attack).prepare is Attack.prepare:
        return None
    public = _public(seen.knowledge)
    path = prepared_path(spec, CaptureStore(spec.captures).record(seen.key))
    report(Progress("wait"))
    with _alone(path.with_suffix(".lock")):
        report(Progress("prepare"))
        try:
            return _learned(path)
        except StoreError:  # absent or broken
            start = time.monotonic()
            job, seed = job_of(spec, seen, device, report), derive(spec.seed, "prepare", path.stem)
            unfinished = path.with_suffix(".unfinished")
            job.keep = partial(save_tensors, unfinished)
            if unfinished.exists():
                job.resume = partial(load_tensors, unfinished)
            learned = attack.prepare(replace(seen, knowledge=public), task, job, seed)
            if learned is None:
                return None
            sha256, seconds = save_tensors(path, learned), time.monotonic() - start
            record = PreparedRecord(
                attack=spec.label, sha256=sha256, order=tuple(learned), seconds=seconds
            )
            write_json(path.with_suffix(".json"), record)
            unfinished.unlink(missing_ok=True)
    return _learned(path)


def prepared_path(spec: JobSpec, record: CaptureRecord) -> Path:
    """Where the tensors lie that the attack learns for the weights and the defense of a capture."""
    facts = {
        "table": dict(spec.table),
        "seed": spec.seed,
        "sent": record.sent_sha256,
        "knowledge": _public(record.knowledge).model_dump(
            mode="json", exclude={"all_rows"}, exclude_defaults=True
        ),
    }
    key = digest(json.dumps(facts, sort_keys=True).encode())
    return spec.guesses.parent / "prepared" / f"{key}.safetensors"


def _public(knowledge: Knowledge) -> Knowledge:
    return knowledge.model_copy(update={"labels": None, "lengths": None, "all_rows": None})


def _learned(path: Path) -> Tensors:
    record = read_record(path.with_suffix(".json"), PreparedRecord)
    return load_tensors(path, record.sha256, record.order)


def job_of(spec: JobSpec, seen: Observation, device: torch.device, report: Report) -> Job:
    """The attack's side of a job, its time starting now."""
    job = Job(
        device=device,
        deadline=time.monotonic() + spec.demand.budget,
        report=Sketch(report),
    )
    store = CaptureStore(spec.captures)
    if seen.knowledge.auxiliary:
        job.auxiliary = store.auxiliary
    if (candidates := store.candidates()) is not None:
        job.candidates = lambda: candidates
    return job


class Sketch:
    """An attack's report of a step, with a picture of its guess from time to time."""

    def __init__(self, report: Report) -> None:
        self._report, self._drawn = report, 0.0

    def __call__(self, step: int, objective: float, guess: str | Tensor) -> None:
        """Take the report of a step."""
        text, image = (guess, None) if isinstance(guess, str) else ("", self._picture(guess))
        self._report(Progress("reconstruct", step, objective, text, image))

    def _picture(self, images: Tensor) -> Tensor | None:
        if time.monotonic() - self._drawn < _DRAWN_EVERY or images.shape[1:-2] not in _DRAWN:
            return None
        self._drawn = time.monotonic()
        return (images.detach()[0].nan_to_num().clamp(0, 1) * 255).round().to("cpu", torch.uint8)


@contextmanager
def _alone(lock: Path) -> Iterator[None]:
    """Hold the lock, so that no two workers learn the same; a worker's death releases it."""
    lock.parent.mkdir(parents=True, exist_ok=True)
    with open_lock(lock) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
