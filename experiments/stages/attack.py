"""The attack stage: jobs for every attack and control on every capture, and what they have."""

from __future__ import annotations

import base64
import json
import math
import os
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias

import torch

from attacks.scheduling.isolation import run_serial
from attacks.scheduling.jobs import Demand, Event, JobSpec, Progress, plan
from attacks.scheduling.ledger import Ledger
from experiments.console import Console
from experiments.plan.cells import Cell
from experiments.plan.config import AttackStage, ExperimentConfig
from experiments.plan.entries import entries
from experiments.plan.folder import Run, earlier_commits
from experiments.stages.png import png
from fedsim.api.ledger import FILE, Forming, LiveRecord
from fedsim.errors import FedsimError
from fedsim.knowledge import Knowledge
from fedsim.records import CONTROLS, PRIOR_ONLY, shown
from fedsim.seeds import generator
from fedsim.store.capture import CaptureKey
from fedsim.store.files import write_bytes

WORK = "attack"


class Attackers:
    """Takes captures as they come and attacks them.

    Attributes:
        ledger: of all jobs.
        interrupted: the reason of each job that the machine ended, and that will be run again.
        devices: what the jobs ran on, those of earlier commands included.
        without_gpu: number of jobs that asked for a GPU and found none.
        ended: number of jobs that ended in this command.
        resumed: number of jobs that an earlier command ended.
    """

    def __init__(self, ledger: Ledger, console: Console, *, retry_failed: bool = False) -> None:
        self.ledger, self._console, self._retry_failed = ledger, console, retry_failed
        self._live = Live(ledger.path.parent)
        self.interrupted: list[str] = []
        self.devices: set[str] = set()
        self.without_gpu = self.ended = self.resumed = 0
        self._pool: Any = None
        self._submitted: set[str] = set()
        self._announced: set[str] = set()
        self._stack = ExitStack()

    def start_ray(self, run: Run) -> None:
        """Start or join the Ray cluster that clients and attack workers share."""
        from attacks.scheduling.cluster import start_ray
        from attacks.scheduling.pool import RayPool

        experiments = [e for e in run.plan.experiments if e.federation.engine == "ray"]
        stage = experiments[0].attack_stage
        wanted = max(logical_cpus(experiment) for experiment in experiments)
        # Attacks during the training need room beside the clients: cores are then shared.
        cpus = max(os.cpu_count() or 1, wanted)
        self._stack.callback(start_ray(stage.address or None, None if stage.address else cpus))
        self._pool = RayPool(
            self.ledger,
            max_running=stage.workers,
            retries=stage.retries,
            on_event=self._show,
            retry_failed=self._retry_failed,
        )
        self._stack.callback(self._pool.close)

    def announce(self, cells: Sequence[Cell]) -> None:
        """Count the jobs of all cells before the first starts, so that the total does not grow."""
        names = {spec.name for cell in cells for spec in jobs(cell)} - self._submitted
        self._console.expect(WORK, len(names))
        self._announced |= names

    def submit(self, cell: Cell, round_: int | None = None) -> None:
        """Attack one round of a cell, or whatever of it has not been attacked."""
        self._start(cell, jobs(cell, round_))

    def submit_some(self, cell: Cell, labels: Collection[str], clients: Collection[int]) -> None:
        """Run some of a cell's attacks on the captures of some clients."""
        self._start(cell, jobs_on(cell, labels, clients))

    def _start(self, cell: Cell, specs: Sequence[JobSpec]) -> None:
        specs = [spec for spec in specs if spec.name not in self._submitted]
        if not specs:
            return
        names = {spec.name for spec in specs}
        self._submitted |= names
        self._console.expect(WORK, len(names - self._announced))
        if cell.config.federation.engine == "ray":
            self._pool.submit(specs)
        else:
            run_serial(specs, self.ledger, self._show, retry_failed=self._retry_failed)

    def unrepeated(self, run: Run) -> str:
        """What to know of jobs that an earlier commit ended; empty if there are none."""
        commits = ", ".join(earlier_commits(run.root, "attack")) if self.resumed else ""
        return commits and (
            f"{self.resumed} jobs stay as they ended, some under {commits}; "
            f"without {run.cells[0].folder.parent}/*/guesses all run again"
        )

    def drain(self) -> None:
        """Wait until every job has its record."""
        if self._pool is not None:
            self._pool.drain()

    def close(self) -> None:
        """Stop what still runs."""
        self._stack.close()
        self._live.close()

    def _show(self, event: Event) -> None:
        spec: JobSpec = event.spec
        if event.state == "settled":
            self._live.drop(spec)
            self.resumed += event.resumed
            self.ended += not event.resumed
            again = [record for record in event.records if record.status == "interrupted"]
            self.interrupted += [record.reason for record in again]
            self.devices |= {record.device for record in event.records if record.device}
            on_cpu = any(record.device == "cpu" for record in event.records)
            self.without_gpu += spec.demand.gpus > 0 and on_cpu
            statuses = ", ".join(sorted({shown(record.status) for record in event.records}))
            self._console.advance(WORK, f"{spec.label} {spec.keys[0]}: {statuses}")
        elif event.progress is not None:
            progress = event.progress
            self._live.note(spec, progress)
            goal = progress.objective
            said = [f"step {progress.step}"]
            said += [] if math.isnan(goal) else [f"objective {goal:.3g}"]
            said += [progress.text] if progress.text else []
            self._console.note(WORK, f"{spec.label} {spec.keys[0]}: {', '.join(said)}")


@contextmanager
def attackers(
    run: Run, ledger: Ledger, console: Console, *, retry_failed: bool = False
) -> Iterator[Attackers]:
    """Attackers for all cells of a run; Ray is started only if a cell asks for it."""
    team = Attackers(ledger, console, retry_failed=retry_failed)
    try:
        if any(e.federation.engine == "ray" for e in run.plan.experiments):
            team.start_ray(run)
        yield team
    finally:
        team.close()


def jobs(cell: Cell, round_: int | None = None) -> list[JobSpec]:
    """The jobs of a cell, or those that need one finished round alone; attacks before controls."""
    stage = cell.experiment.attack_stage
    specs_by_entry = [
        plan(
            cell.captures.root,
            cell.folder / "guesses",
            entry.label,
            entry.table,
            cell.config.seed,
            demand(stage),
            round=round_,
            chunk=stage.group_size,
        )
        for entry in entries(cell.experiment)
    ]
    of_updates = [spec for specs in specs_by_entry for spec in specs]
    return of_updates + list(control_jobs(of_updates, donors_of(cell, round_)))


def jobs_on(cell: Cell, labels: Collection[str], clients: Collection[int]) -> list[JobSpec]:
    """The jobs of some attacks, cut to the captures of some clients."""
    cut = []
    for spec in jobs(cell):
        keys = tuple(key for key in spec.keys if key.client in clients)
        if keys and spec.label in labels:
            cut.append(replace(spec, keys=keys))
    return cut


def control_jobs(
    specs: Sequence[JobSpec], donors: Mapping[CaptureKey, Sequence[Donor]]
) -> Iterator[JobSpec]:
    """The jobs once more, each capture with the reply of a donor whose granted facts differ."""
    for job in range(len(CONTROLS)):
        chosen = {
            key: donor.key for key, some in donors.items() for donor in some if donor.job == job
        }
        for spec in specs:
            keys = tuple(key for key in spec.keys if key in chosen)
            if keys and spec.table["name"] != PRIOR_ONLY:
                label = control_label(spec.label, job)
                replies = tuple(chosen[key] for key in keys)
                yield replace(spec, label=label, keys=keys, donors=replies)


def logical_cpus(experiment: ExperimentConfig) -> int:
    """CPUs that clients and attacks ask for at the same time."""
    stage = experiment.attack_stage
    attacking = stage.workers * stage.cpus
    clients = experiment.federation.client_workers
    return int(-(-attacking // 1)) + (clients if stage.when == "round" else 0)


def demand(stage: AttackStage) -> Demand:
    """What ``[attack_stage]`` gives to each job."""
    return Demand(stage.cpus, stage.gpus, stage.time_budget, stage.grace, stage.threads, stage.tf32)


EVERY = 1.0
"""Seconds between two writes."""


class Live:
    """Writes the file at most once a second; a run never fails for it."""

    def __init__(self, run: Path) -> None:
        self._path = run / FILE
        self._jobs: dict[str, Progress] = {}
        self._written = 0.0

    def note(self, spec: JobSpec, progress: Progress) -> None:
        """Take the progress of a job."""
        self._jobs[spec.name] = progress
        if time.monotonic() - self._written >= EVERY:
            self._written = time.monotonic()
            record = LiveRecord(jobs={name: forming(latest) for name, latest in self._jobs.items()})
            with suppress(FedsimError):  # the guess itself is written when the job ends
                data = json.dumps(record.model_dump()).encode()
                write_bytes(self._path, data, sync=False, private=True)

    def drop(self, spec: JobSpec) -> None:
        """The job has ended."""
        self._jobs.pop(spec.name, None)

    def close(self) -> None:
        """No job runs any more."""
        with suppress(OSError):
            self._path.unlink(missing_ok=True)


def forming(progress: Progress) -> Forming:
    """What the file holds of a progress."""
    image = b"" if progress.image is None else png(progress.image)
    return Forming(
        phase=progress.phase,
        step=progress.step,
        objective=progress.objective if math.isfinite(progress.objective) else None,
        text=progress.text,
        image=base64.b64encode(image).decode(),
    )


Facts: TypeAlias = tuple[str, str]
"""Whether a capture is a client's or which kind of probe, and the granted knowledge as JSON."""
_TRIED = 8
"""Donors with equal facts that are drawn, as scoring leaves out those that share a row."""


@dataclass(frozen=True, slots=True)
class Donor:
    """A capture whose reply takes the place of a victim's.

    Attributes:
        key: the capture.
        job: number of the control job in which the victim is attacked with this reply; None where
            the granted facts of both are equal, so that the attack on the donor itself serves.
    """

    key: CaptureKey
    job: int | None = None

    def source(self, label: str, victim: CaptureKey) -> tuple[str, CaptureKey]:
        """Label and key under which the guess at the victim from this reply is kept."""
        return (label, self.key) if self.job is None else (control_label(label, self.job), victim)


def control_label(label: str, job: int) -> str:
    """Label of the control jobs of an attack; no attack's own label holds an ``@``."""
    return f"{label}@control-{job + 1}"


def donors(
    facts: Mapping[CaptureKey, Facts], seed: int, jobs: int
) -> dict[CaptureKey, tuple[Donor, ...]]:
    """For each capture the captures of the same kind whose replies may take its reply's place.

    They are drawn at random from the other clients of the round, or from the client's other rounds
    where it is alone: those of equal facts first, then as many others as lack to ``jobs``. Each
    victim draws for itself. In a permutation of the replies, such as the next client's, every guess
    would be used once, so that how good guesses are in general would cancel from any sum over
    clients, and a test of one control against another could never fail.

    Args:
        facts: of all captures of a cell, or of one round.
        seed: the cell's seed.
        jobs: attack runs that a victim's controls may cost.
    """
    rounds = _groups(facts, lambda key: (key.round, facts[key][0]))
    alone = {key: facts[key] for group in rounds if len(group) == 1 for key in group}
    groups = [group for group in rounds if len(group) > 1]
    groups += _groups(alone, lambda key: (key.client, facts[key][0]))
    return {key: drawn for group in groups for key, drawn in _of_group(group, facts, seed, jobs)}


def _of_group(
    group: Sequence[CaptureKey], facts: Mapping[CaptureKey, Facts], seed: int, jobs: int
) -> Iterator[tuple[CaptureKey, tuple[Donor, ...]]]:
    alike: dict[Facts, list[CaptureKey]] = defaultdict(list)
    for key in group:
        alike[facts[key]].append(key)
    for same in alike.values():
        lacking = max(0, jobs - len(same) + 1)
        places = {key: place for place, key in enumerate(group)}
        for place, key in enumerate(same):
            free = islice(_drawn(same, place, seed), _TRIED)
            others = (
                other for other in _drawn(group, places[key], seed) if facts[other] != facts[key]
            )
            costly = enumerate(islice(others, lacking))
            yield key, (*map(Donor, free), *(Donor(other, job) for job, other in costly))


def _drawn(group: Sequence[CaptureKey], place: int, seed: int) -> Iterator[CaptureKey]:
    """The others of a group in random order, by client the same one in each round."""
    rng = generator(seed, "control", group[place].client)
    order = torch.randperm(len(group), generator=rng).tolist()
    return (group[other] for other in order if other != place)


def _groups(
    facts: Mapping[CaptureKey, Facts], shared: Callable[[CaptureKey], tuple[int, str]]
) -> list[list[CaptureKey]]:
    groups: dict[tuple[int, str], list[CaptureKey]] = defaultdict(list)
    for key in facts:
        groups[shared(key)].append(key)
    return list(groups.values())


def donors_of(cell: Cell, round_: int | None = None) -> dict[CaptureKey, tuple[Donor, ...]]:
    """The donors of a cell's captures, or of those of one round."""
    store, config = cell.captures, cell.config
    facts = {
        key: (config.kind_of(key.client), _facts(store.record(key).knowledge))
        for key in store.keys()
        if round_ in (None, key.round)
    }
    return donors(facts, config.seed, cell.experiment.attack_stage.control_jobs)


def _facts(knowledge: Knowledge) -> str:
    """As JSON, without who the clients of a cohort are, which tells nothing of their rows."""
    return knowledge.model_dump_json(exclude={"members"})
