"""Execution of one job on any engine: load, check, prepare, reconstruct, write."""

from __future__ import annotations

import gc
import os
import resource
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import torch

from attacks import attacks_for
from attacks.base import Attack, Job, Reconstruction, Trace, check_facts
from attacks.foreign.readings import best_reading, load_reply
from attacks.scheduling.guesses import Malformed, as_guess
from attacks.scheduling.jobs import JobSpec, Progress
from attacks.scheduling.prepared import Report, job_of, prepare
from fedsim.config.build import build
from fedsim.errors import CannotAttack, FedsimError, StoreError, Terminated, message_of, one_line
from fedsim.process import device_for, device_name, float32, unchanged
from fedsim.records import UNFINISHED, JobRecord, Status
from fedsim.seeds import derive, generator, seeded
from fedsim.store.capture import CaptureKey, CaptureStore, Observation, batch_tensors
from fedsim.store.files import save_tensors, write_json
from fedsim.tasks import from_elsewhere, load_task
from fedsim.tasks.base import Task
from fedsim.types import Tensors

HALVED = "the memory did not hold all victims at once, so that the group was halved"

_LOST: tuple[type[Exception], ...] = (torch.AcceleratorError,)
"""Errors after which a process cannot use its GPU, such as an index out of range in a kernel."""


class GpuLost(FedsimError):
    """This process cannot use its GPU any more; the records of its job are written."""


def silent(_: object) -> None:
    """Take a report and do nothing."""


def run_job(spec: JobSpec, report: Report = silent) -> list[JobRecord]:
    """Run one job and write, for each key, the guess and then its record.

    Any exception of the attack becomes a record, and it leaves the settings of this process as they
    were. ``seconds`` is the time of the reconstruction
    divided by the size of the group, without the time to prepare. ``peak_bytes`` is the peak memory
    of this process so far, or that of this job on the GPU.

    Raises:
        GpuLost: the records are written, and this process cannot use its GPU any more.
    """
    device = device_for(spec.demand.gpus)
    on_gpu, name = device.type == "cuda", device_name(device)
    if on_gpu:
        torch.cuda.reset_peak_memory_stats(device)
    process = os.getpid()
    outcomes, seconds = _seeded_attack(spec, device, report)
    if os.getpid() != process:  # the attack has forked, and this copy would write as well
        os._exit(os.EX_SOFTWARE)
    peak = torch.cuda.max_memory_allocated(device) if on_gpu else _resident()
    each = seconds / len(spec.keys)
    records = [write_outcome(spec, key, outcomes[key], each, peak, name) for key in spec.keys]
    lost = next((outcome for outcome in outcomes.values() if isinstance(outcome, _LOST)), None)
    if lost is not None:
        raise GpuLost(
            f"{spec.name}: the GPU stopped ({' '.join(str(lost).split())[:200]}). The job is "
            "recorded as failed; run the same command again to go on with the others."
        )
    if on_gpu:  # an idle worker must not hold what a neighbour needs
        del outcomes
        gc.collect()  # hooks and tracebacks tie models into cycles
        torch.cuda.empty_cache()
    return records


def _seeded_attack(
    spec: JobSpec, device: torch.device, report: Report
) -> tuple[dict[CaptureKey, AttackOutcome], float]:
    seed = derive(spec.seed, "attack", spec.label, str(spec.keys[0]))
    outcomes: tuple[dict[CaptureKey, AttackOutcome], float] = {}, 0.0
    exact = float32(tf32=spec.demand.tf32)
    try:
        with unchanged(), exact, seeded(seed):
            torch.set_num_threads(spec.demand.threads)
            outcomes = _attack(spec, device, report)
    except _LOST as error:  # the state of its generator cannot be restored either
        outcomes = outcomes if outcomes[0] else (dict.fromkeys(spec.keys, error), 0.0)
    return outcomes


def _resident() -> int:
    """Largest resident memory of this process, bytes; Linux counts it in KiB, macOS in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _attack(
    spec: JobSpec, device: torch.device, report: Report
) -> tuple[dict[CaptureKey, AttackOutcome], float]:
    """For each key its guess or the exception that ended it; seconds of the reconstruction."""
    outcomes: dict[CaptureKey, AttackOutcome] = {}
    start = time.monotonic()
    observations: list[Observation] = []
    try:
        report(Progress("load"))
        attack = build(attacks_for(spec.table), spec.table, f"attacks.{spec.label}")
        task = load_task(spec.captures)
        if from_elsewhere(spec.captures):
            return _read(spec, attack, task, device, report)
        for key, loaded in _load(spec, attack, task):
            if isinstance(loaded, Exception):
                outcomes[key] = loaded
            else:
                observations.append(loaded)
        if observations:
            prepared = prepare(spec, attack, observations[0], task, device, report)
            report(Progress("reconstruct"))
            start = time.monotonic()
            job = job_of(spec, observations[0], device, report)
            job.prepared = prepared
            guesses = list(reconstruct(attack, observations, task, job, spec))
            if len(guesses) != len(observations):
                raise ValueError(f"{len(guesses)} guesses for {len(observations)} observations")
            ended = [_ended(guess, attack, task, job) for guess in guesses]
            outcomes |= zip((o.key for o in observations), ended, strict=True)
    except (KeyboardInterrupt, Terminated):
        raise
    except BaseException as error:  # whatever an attack raises is a result, and is written down
        outcomes = {key: outcomes.get(key, error) for key in spec.keys}
    return outcomes, time.monotonic() - start


def _read(
    spec: JobSpec, attack: Attack, task: Task, device: torch.device, report: Report
) -> tuple[dict[CaptureKey, AttackOutcome], float]:
    """As ``_attack``, of replies whose facts are open, each alone."""
    outcomes: dict[CaptureKey, AttackOutcome] = {}
    start = time.monotonic()
    for key in spec.keys:
        reply = load_reply(CaptureStore(spec.captures), key)
        report(Progress("reconstruct"))
        job = job_of(spec, reply.seen, device, report)
        guess: AttackOutcome
        try:
            guess = best_reading(reply, task, spec.label, attack, job, spec.seed)
        except CannotAttack as error:
            guess = error
        outcomes[key] = _ended(guess, attack, task, job)
    return outcomes, time.monotonic() - start


def _ended(returned: object, attack: Attack, task: Task, job: Job) -> AttackOutcome:
    """What an attack returned for one observation, checked: it may be anybody's."""
    outcome: AttackOutcome
    if isinstance(returned, BaseException):
        outcome = returned
    else:
        try:
            outcome = as_guess(returned, task, attack.infers)
        except Malformed as error:
            outcome = error
    return _unfinished(outcome) if job.late else outcome


def _unfinished(outcome: AttackOutcome) -> AttackOutcome:
    """The outcome of an attack that was told to end; it need not say so itself."""
    if isinstance(outcome, CannotAttack):  # it might have gone on to a guess
        outcome.ended = "timeout"
    return replace(outcome, expired=True) if isinstance(outcome, Reconstruction) else outcome


def _load(
    spec: JobSpec, attack: Attack, task: Task
) -> Iterator[tuple[CaptureKey, Observation | Exception]]:
    """Each observation, or the error that rules out its attack; equal broadcasts share memory."""
    store = CaptureStore(spec.captures)
    sent: dict[str, Tensors] = {}
    for key, donor in zip(spec.keys, spec.donors or spec.keys, strict=True):
        try:
            seen = store.load(key)
            seen = seen if donor == key else seen.with_reply_of(store.load(donor))
            check_facts(attack, seen.knowledge, task)
            yield key, replace(seen, sent=sent.setdefault(store.record(key).sent_sha256, seen.sent))
        except FedsimError as error:
            yield key, error


def reconstruct(
    attack: Attack, group: Sequence[Observation], task: Task, job: Job, spec: JobSpec
) -> Sequence[AttackOutcome]:
    """A guess for each observation, or the error that rules it out.

    One that cannot be attacked does not prevent attacks on the others. Where memory runs out the
    group is halved, which its guesses note and which changes their rounding. A client's rounds stay
    together.
    """
    rngs = [generator(spec.seed, "attack", o.key.round, o.key.client, spec.label) for o in group]
    try:
        return attack.reconstruct(group, task, rngs, job)
    except CannotAttack as error:
        if len(group) == 1:
            return [error]
        parts, note = [[observation] for observation in group], ""
    except Exception as error:
        if attack.grouped_by in ("same_client", "whole_run") or not is_out_of_memory(error):
            raise
        if len(group) == 1:
            return [error]
        half = len(group) // 2
        parts, note = [list(group[:half]), list(group[half:])], HALVED
    if job.device.type == "cuda":
        torch.cuda.empty_cache()
    outcomes = [outcome for part in parts for outcome in reconstruct(attack, part, task, job, spec)]
    return [_noted(outcome, note) for outcome in outcomes]


def _noted(outcome: AttackOutcome, note: str) -> AttackOutcome:
    if not isinstance(outcome, Reconstruction) or note in outcome.note:
        return outcome
    return replace(outcome, note="; ".join(filter(None, (outcome.note, note))))


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
        record = record.model_copy(update=failure | _refusal(outcome))
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


def _refusal(error: BaseException) -> dict[str, Any]:
    """The parts of a refusal; of another error none."""
    if not isinstance(error, CannotAttack):
        return {}
    cause, advice = one_line(error.reason), one_line(error.advice)
    return {"cause": cause, "missing": error.missing, "advice": advice}


def _reason(error: BaseException, label: str) -> str:
    """On one line: ``<label>: <reason>. <advice>``, or else ``Type: message (file:line)``."""
    if isinstance(error, CannotAttack):
        ended = f"{UNFINISHED}; " if error.ended == "timeout" else ""
        return f"{ended}{label}: {message_of(error)}"
    if isinstance(error, _NonFinite | Malformed):
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
