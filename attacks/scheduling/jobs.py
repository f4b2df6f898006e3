"""Attack jobs: the observations of each job, and the paths of its guesses and records."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any, Literal, TypeAlias

from torch import Tensor

from attacks import attacks_for
from fedsim.config.build import build, changed_options
from fedsim.errors import ConfigError, StoreError
from fedsim.records import UNFINISHED, JobRecord, Status
from fedsim.store.capture import CaptureKey, CaptureStore, read_keyed
from fedsim.store.files import load_tensors, read_record, write_json

Phase: TypeAlias = Literal["load", "wait", "prepare", "reconstruct"]
Change: TypeAlias = Literal["queued", "running", "settled"]


@dataclass(frozen=True, slots=True)
class Demand:
    """Resources of each job of an attack.

    Attributes:
        cpus: CPUs that Ray reserves for a job.
        gpus: share of a GPU, or a whole number of them; 0 keeps the job on the CPU.
        budget: seconds after which the attack must return its best guess so far.
        grace: seconds after the budget until the Ray engine kills the worker.
        threads: torch threads; part of the experiment, since sums depend on it.
        tf32: whether a GPU may multiply in TF32.
    """

    cpus: float = 1.0
    gpus: float = 0.0
    budget: float = 600.0
    grace: float = 60.0
    threads: int = 1
    tf32: bool = False

    @property
    def killed(self) -> str:
        """The reason of a job that was killed as its time was over."""
        times = f"{self.budget:g} s budget and {self.grace:g} s grace"
        return f"{UNFINISHED}, which killed it after {times}"


@dataclass(frozen=True, slots=True)
class JobSpec:
    """One call of one attack: paths and names only, so that it travels to any worker.

    Attributes:
        captures: the ``captures/`` folder of a cell.
        guesses: the ``guesses/`` folder of the cell.
        label: the attack's label in the experiment, unique there.
        table: the attack's name and the options that differ from their defaults.
        keys: the group of observations.
        seed: the experiment's seed.
        attempt: 1 for the first.
        donors: of a control job, for each key the capture whose reply takes the place of its own.
    """

    captures: Path
    guesses: Path
    label: str
    table: Mapping[str, Any]
    keys: tuple[CaptureKey, ...]
    seed: int
    demand: Demand = Demand()
    attempt: int = 1
    donors: tuple[CaptureKey, ...] = ()

    @property
    def cell(self) -> str:
        """Name of the cell's folder."""
        return self.guesses.parent.name

    @property
    def name(self) -> str:
        """``<cell>/<label>/<first key>``: groups of one label share no key."""
        return f"{self.cell}/{self.label}/{self.keys[0]}"

    def guess_path(self, key: CaptureKey) -> Path:
        """Where the guess of ``key`` lies; its record lies beside, as ``.json``, written last."""
        return self.guesses / self.label / f"{key}.safetensors"

    def record_path(self, key: CaptureKey) -> Path:
        """Where the record of ``key`` lies."""
        return self.guess_path(key).with_suffix(".json")


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of a running job.

    Attributes:
        text: the guess so far if it is a text.
        image: the first image of the guess so far, ``(channel, height, width)`` in uint8, at most
            twice a second; None if the guess is none, or of code that runs apart.
    """

    phase: Phase
    step: int = 0
    objective: float = math.nan
    text: str = ""
    image: Tensor | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Event:
    """A change of one job, for progress bars.

    Attributes:
        state: ``queued`` again after a worker died; ``settled`` once ``records`` are final.
        progress: of a running job; None in other states.
        resumed: whether the records come from an earlier command.
    """

    spec: JobSpec
    state: Change
    progress: Progress | None = None
    records: tuple[JobRecord, ...] = ()
    resumed: bool = False


Listener: TypeAlias = Callable[[Event], None]


def plan(
    captures: Path,
    guesses: Path,
    label: str,
    table: Mapping[str, object],
    seed: int,
    demand: Demand = Demand(),
    *,
    round: int | None = None,
    chunk: int = 16,
) -> list[JobSpec]:
    """The jobs of one attack on one cell, by round and client.

    Args:
        captures: the ``captures/`` folder of the cell.
        guesses: the ``guesses/`` folder of the cell.
        label: the attack's label in the experiment.
        table: the attack's name and options, as in the experiment file.
        seed: the experiment's seed.
        demand: resources of each job.
        round: return only the jobs that need no other than this finished round; None for all jobs,
            in the same groups, including those that have to wait for all rounds.
        chunk: most observations of one ``same_weights`` job; independent of the number of workers,
            so that the groups are too.
    """
    attack = build(attacks_for(table), table, f"attacks.{label}")
    store = CaptureStore(captures.resolve())
    keys = store.keys()
    if round is not None:
        keys = [key for key in keys if key.round == round]
    if attack.grouped_by == "each":
        groups: Iterator[tuple[CaptureKey, ...]] = ((key,) for key in keys)
    elif attack.grouped_by == "same_weights":
        groups = _by_weights(store, keys, chunk)
    elif attack.grouped_by == "same_client":
        groups = _by_client(keys if round is None else [])
    else:
        groups = iter([tuple(keys)] if keys and round is None else [])
    resolved = {"name": table["name"], **changed_options(attack)}
    folder = guesses.resolve()
    return [JobSpec(store.root, folder, label, resolved, group, seed, demand) for group in groups]


def _by_weights(
    store: CaptureStore, keys: Sequence[CaptureKey], chunk: int
) -> Iterator[tuple[CaptureKey, ...]]:
    groups: dict[tuple[int, str], list[CaptureKey]] = {}
    for key in keys:
        groups.setdefault((key.round, store.record(key).sent_sha256), []).append(key)
    for group in groups.values():
        for start in range(0, len(group), chunk):
            yield tuple(group[start : start + chunk])


def _by_client(keys: Sequence[CaptureKey]) -> Iterator[tuple[CaptureKey, ...]]:
    for _, group in groupby(sorted(keys, key=lambda k: (k.client, k.round)), lambda k: k.client):
        yield tuple(group)


def check_fits(demand: Demand, label: str, machines: Sequence[tuple[float, float]]) -> None:
    """Raise ``ConfigError`` unless one of the machines has the CPUs and the GPUs for a job."""
    if not any(demand.cpus <= cpus and demand.gpus <= gpus for cpus, gpus in machines):
        have = " or ".join(f"{c:g} CPUs and {g:g} GPUs" for c, g in sorted(set(machines)))
        raise ConfigError(
            f"attacks.{label}: a job asks for {demand.cpus:g} CPUs and {demand.gpus:g} GPUs, "
            f"and a machine of the Ray cluster has {have}. Lower cpus or gpus."
        )
    if demand.gpus > 1 and demand.gpus % 1:
        raise ConfigError(
            f"attacks.{label}.gpus: {demand.gpus:g} is more than 1 and not whole. "
            "Ask for a share of one GPU, or for whole ones."
        )


def settled(spec: JobSpec) -> list[JobRecord] | None:
    """The records of all keys as ``recorded`` finds them, or None if one was interrupted."""
    records = recorded(spec)
    lost = records is None or any(record.status == "interrupted" for record in records)
    return None if lost else records


def recorded(spec: JobSpec) -> list[JobRecord] | None:
    """The records of all keys, or None unless each record and its guess are complete on disk.

    A broken guess is not an error: it counts as absent, and the job makes it again.
    """
    records = []
    for key in spec.keys:
        if not spec.record_path(key).exists():
            return None
        try:
            record = read_keyed(spec.record_path(key), JobRecord, key)
            if record.sha256 is not None:
                load_tensors(spec.guess_path(key), record.sha256)
        except StoreError:
            return None
        records.append(record)
    return records


def discard(spec: JobSpec) -> None:
    """Remove old records, so that any record on disk comes from the job now started."""
    for key in spec.keys:
        spec.record_path(key).unlink(missing_ok=True)


def give_up(spec: JobSpec, status: Status, reason: str, seconds: float) -> list[JobRecord]:
    """Write the records that a dead worker did not write, and keep those that it did."""
    for key in spec.keys:
        if not spec.record_path(key).exists():
            spec.guess_path(key).unlink(missing_ok=True)
            record = JobRecord(
                attack=spec.label,
                key=key,
                status=status,
                reason=reason,
                seconds=seconds / len(spec.keys),
                attempts=spec.attempt,
            )
            write_json(spec.record_path(key), record)
    return [read_record(spec.record_path(key), JobRecord) for key in spec.keys]
