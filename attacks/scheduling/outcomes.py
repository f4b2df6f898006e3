"""Outcome of a job for each key: the guess, and the record of how the job ended."""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import TypeAlias

import torch

from attacks.base import Reconstruction, Trace
from attacks.scheduling.jobs import JobSpec
from fedsim.capture import CaptureKey, batch_tensors
from fedsim.errors import CannotAttack, StoreError, Terminated, message_of
from fedsim.files import save_tensors, write_json
from fedsim.records import UNFINISHED, JobRecord, Status
from fedsim.types import Tensors

AttackOutcome: TypeAlias = Reconstruction | BaseException
_TRACE_POINTS = 200
"""Most points of a trace that a record keeps."""
_SHORT = 1.0
"""Seconds of a job that may be lost with the machine's memory: a sync takes longer than many."""


class _NonFinite(Exception):
    pass


def is_interruption(error: BaseException) -> bool:
    """Whether the machine ended the job, and not the attack: a file, the disk or the memory."""
    return isinstance(error, StoreError | OSError) or is_out_of_memory(error)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether the CPU's or the GPU's memory was too small."""
    # The allocator of the CPU has no error of its own.
    lacking = isinstance(error, MemoryError | torch.OutOfMemoryError)
    return lacking or (isinstance(error, RuntimeError) and "allocate memory" in str(error))


def write_outcome(
    spec: JobSpec,
    key: CaptureKey,
    outcome: AttackOutcome,
    seconds: float,
    peak: int,
    device: str = "cpu",
) -> JobRecord:
    """Write the guess, if there is one, and then the record.

    Those of a short job are not synced: if the machine crashes, it is run again.
    """
    sync = seconds > _SHORT
    record = JobRecord(
        attack=spec.label,
        key=key,
        status="failed",
        seconds=seconds,
        peak_bytes=peak,
        device=device,
        attempts=spec.attempt,
    )
    if isinstance(outcome, Reconstruction):
        try:
            tensors = _finite(outcome)
            record = JobRecord.model_validate({**dict(record), **_statements(outcome)})
        except (KeyboardInterrupt, Terminated):
            raise
        except BaseException as error:  # a malformed guess is a failed attack, too
            outcome = error
        else:
            sha256 = save_tensors(spec.guess_path(key), tensors, sync=sync)
            record = record.model_copy(update={"sha256": sha256})
    if isinstance(outcome, BaseException):
        spec.guess_path(key).unlink(missing_ok=True)
        failure = {"status": _status(outcome), "reason": _reason(outcome, spec.label)}
        record = record.model_copy(update=failure)
    record = record.sealed()
    write_json(spec.record_path(key), record, sync=sync)
    return record


def _statements(outcome: Reconstruction) -> dict[str, object]:
    """The attack's statements about its guess; validated, as attacks may come from others."""
    ended: Status = "exhausted" if outcome.exhausted else "done"
    return {
        "status": "timeout" if outcome.expired else ended,
        "reason": "; ".join(filter(None, (UNFINISHED if outcome.expired else "", outcome.note))),
        "objective": outcome.objective,
        "steps": outcome.steps,
        "confidence": outcome.confidence,
        "trace": thin(outcome.trace),
    }


def _finite(outcome: Reconstruction) -> Tensors:
    """The guess on the CPU, each tensor with its own memory, as safetensors requires."""
    scores = {} if outcome.scores is None else {"scores": outcome.scores}
    guessed = {**batch_tensors(outcome.guess), **scores}
    tensors = {k: v.detach().cpu().clone() for k, v in guessed.items()}
    if not all(bool(tensor.isfinite().all()) for tensor in tensors.values()):
        raise _NonFinite("non-finite guess")
    return tensors


def _status(error: BaseException) -> Status:
    if isinstance(error, CannotAttack):
        return error.ended or "skipped"
    return "interrupted" if is_interruption(error) else "failed"


def _reason(error: BaseException, label: str) -> str:
    """On one line: ``<label>: <reason>. <advice>``, or else ``Type: message (file:line)``."""
    if isinstance(error, CannotAttack):
        ended = f"{UNFINISHED}; " if error.ended == "timeout" else ""
        return f"{ended}{label}: {message_of(error)}"
    if isinstance(error, _NonFinite):
        return message_of(error)
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {message_of(error)}{where}"


def thin(trace: Trace, most: int = _TRACE_POINTS) -> Trace:
    """At most ``most`` points, evenly spaced, the first and the last among them."""
    if len(trace) <= most:
        return tuple(trace)
    last = len(trace) - 1
    return tuple(trace[round(i * last / (most - 1))] for i in range(most))
