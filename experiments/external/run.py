"""The run folder of attacks on another application's captures, ``run/`` beside the tensors."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from attacks.scheduling.jobs import Demand, JobSpec
from experiments.external.captured import Captured
from experiments.external.evidence import Fit
from experiments.external.guess import Guess
from experiments.plan.config import Plan
from experiments.plan.folder import (
    EXTERNAL,
    Run,
    check_version,
    check_whole,
    write_experiment,
)
from fedsim.capture import CaptureKey, CaptureStore, batch_from, read_keyed
from fedsim.errors import StoreError
from fedsim.files import load_tensors, read_json, read_record
from fedsim.plain_files import check_folder, make_private
from fedsim.records import JobRecord
from fedsim.tasks import load_task
from fedsim.tasks.base import Task, TaskSpec
from fedsim.tasks.images import ImageClassification

_CELL = re.compile(r"captures\.[0-9a-f]{8}")


@dataclass(frozen=True)
class Outcome:
    """One attack on one capture; ``guess`` is None where there is none."""

    record: JobRecord
    guess: Guess | None
    fit: Fit | None

    @property
    def certified(self) -> int:
        """Number of examples that the update proves."""
        return sum(level == "certified" for level in self.record.confidence or ())

    @property
    def refusal(self) -> str:
        """Why there is no guess; empty if there is one."""
        if self.guess is not None:
            return ""
        return self.record.reason.removeprefix(f"{self.record.attack}: ")

    def __str__(self) -> str:
        if self.guess is None:
            refuses = "refuses: " if self.record.status == "skipped" else ""
            return f"{self.record.attack}: {refuses}{self.refusal}"
        return str(self.guess) + ("" if self.fit is None else f"\n  {self.fit}")


@dataclass(frozen=True)
class ExternalRun:
    """Guesses, records and pages of attacks on a folder of captures.

    Attributes:
        captures: the folder.
        cell: name of the folder of the guesses; another one as soon as the captures, the model,
            the granted facts or the time are others.
        budget: seconds of each attack on each capture.
    """

    captures: CaptureStore
    cell: str
    budget: float

    @property
    def root(self) -> Path:
        """The run folder."""
        return self.captures.root / "run"

    @property
    def folder(self) -> Path:
        """The cell's folder."""
        return self.root / self.cell

    @property
    def plain(self) -> Run:
        """As a run without cells, for the record of where it came from."""
        return Run(self.root, Plan(name=EXTERNAL, experiments=()), ())

    @classmethod
    def create(cls, found: Captured, names: Sequence[str], budget: float) -> ExternalRun:
        """Make the folder, or go on in it; what was finished with the same options is kept."""
        store = found.store
        records = [store.record(key) for key in store.keys()]
        known = {
            "task": found.task.spec.model_dump(mode="json"),
            "knows": {k: _plain(v) for k, v in found.knows.items()},
            "kind": found.kind,
            "budget": budget,
            "base": found.base is not None,
        }
        seen = [(str(one.key), one.sha256, one.sent_sha256) for one in records]
        text = json.dumps([known, seen], sort_keys=True, default=str)
        run = cls(store, f"captures.{hashlib.sha256(text.encode()).hexdigest()[:8]}", budget)
        make_private(run.root)
        table = {
            "kind": EXTERNAL,
            "name": store.root.name,
            "cell": run.cell,
            "budget": float(budget),
            "model": found.task.spec.factory or found.task.spec.model,
            "task": found.task.spec.kind,
            "attacks": [{"name": name} for name in names],
            "knows": {k: v for k, v in known["knows"].items() if v is not None},  # type: ignore[union-attr]
        }
        write_experiment(run.root, table)
        return run

    @classmethod
    def open(cls, folder: Path) -> ExternalRun:
        """The run of the latest attacks on a folder of captures.

        Raises:
            StoreError: nothing was attacked.
        """
        store = CaptureStore(folder.resolve())
        if not (store.root / "run" / "experiment.toml").exists():
            raise StoreError(f"{folder}: not attacked. Run fedsim attack {folder} first.")
        table = check_version(store.root / "run")
        path = store.root / "run" / "experiment.toml"
        check_whole(path)
        cell, budget = table.get("cell"), table.get("budget")
        if not (
            isinstance(cell, str) and _CELL.fullmatch(cell) and isinstance(budget, int | float)
        ):  # the folder may be anybody's, and the name leads to a folder
            raise StoreError(f"{path}: not the experiment of such attacks. Attack again.")
        return cls(store, cell, float(budget))

    def job(self, name: str, key: CaptureKey) -> JobSpec:
        """One attack on one capture, as the ledger knows it."""
        return JobSpec(
            captures=self.captures.root,
            guesses=self.folder / "guesses",
            label=name,
            table={"name": name},
            keys=(key,),
            seed=0,
            demand=Demand(budget=self.budget),
        )

    def fit_path(self, job: JobSpec) -> Path:
        """Where the cosines of a guess lie."""
        return job.guess_path(job.keys[0]).with_suffix(".fit.json")

    def outcome(self, job: JobSpec, task: Task) -> Outcome:
        """What one job left."""
        (key,) = job.keys
        record = read_keyed(job.record_path(key), JobRecord, key)
        if record.sha256 is None:
            return Outcome(record, None, None)
        path = self.fit_path(job)
        cosines = read_json(path)["cosines"] if path.exists() else None
        batch = batch_from(load_tensors(job.guess_path(key), record.sha256))
        guess = Guess(
            attack=record.attack,
            options={},
            examples=task.examples(batch),
            confidence=record.confidence or (),
            objective=record.objective,
            seconds=record.seconds,
            note=record.reason,
            task=task,
        )
        return Outcome(record, guess, Fit(*cosines) if cosines else None)

    def outcomes(self, task: Task) -> Iterator[Outcome]:
        """All that attacks left, by capture and attack."""
        for key in self.captures.keys():
            for path in sorted((self.folder / "guesses").glob(f"*/{key}.json")):
                yield self.outcome(self.job(path.parent.name, key), task)


def task_in(folder: Path) -> Task:
    """The task of captures that ``check_folder`` takes, without running code that a file names."""
    check_folder(folder)
    path = folder / "task.json"
    if path.exists() and (spec := read_record(path, TaskSpec)).factory:
        return ImageClassification(spec)  # pictures are compared without their model
    return load_task(folder)


def _plain(value: object) -> object:
    return asdict(value) if hasattr(value, "__dataclass_fields__") else value  # type: ignore[call-overload]
