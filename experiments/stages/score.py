"""The score stage: guesses against the truth. Nothing else reads ``truth/``."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from experiments.plan.cells import Cell
from experiments.plan.entries import Entry, entries
from experiments.plan.folder import Run
from experiments.plan.levels import level_of
from experiments.stages.attack import guess_folder
from experiments.stages.coverage import Coverage, coverage, row_numbers
from experiments.stages.privacy import spent
from experiments.stages.rows import write_rows
from experiments.stages.signals import SignalRow, signals
from experiments.stages.updates import UpdateRow, updates
from fedsim.build import registry
from fedsim.capture import CaptureKey, batch_from
from fedsim.errors import StoreError
from fedsim.files import load_tensors, read_record
from fedsim.metrics import METRICS
from fedsim.metrics.base import Examples, Metric
from fedsim.metrics.match import Assignment, align, match, nothing
from fedsim.records import (
    MAIN,
    OTHER_CLIENT,
    PRIOR_ONLY,
    SECOND_CLIENT,
    JobRecord,
    ProbeKind,
    ScoreRow,
    SimulationRecord,
    UtilityRow,
)
from fedsim.tasks import load_task
from fedsim.tasks.base import Task
from fedsim.threads import one_thread
from fedsim.truth import TruthRecord


@dataclass(frozen=True)
class Guess:
    """What one job left."""

    record: JobRecord
    examples: Examples | None


@dataclass(frozen=True)
class Scorer:
    """Scores the jobs of one cell."""

    cell: Cell

    @cached_property
    def task(self) -> Task:
        """The cell's task, from its captures."""
        return load_task(self.cell.captures.root)

    @cached_property
    def keys(self) -> list[CaptureKey]:
        """The captures of the cell."""
        return self.cell.captures.keys()

    @cached_property
    def truths(self) -> dict[CaptureKey, Examples]:
        """The private examples, by capture."""
        return {key: self.task.examples(self.cell.truth.load(key)) for key in self.keys}

    @cached_property
    def owned(self) -> dict[CaptureKey, TruthRecord]:
        """By capture, which rows and steps it is about."""
        return {key: self.cell.truth.record(key) for key in self.keys}

    @cached_property
    def probes(self) -> dict[CaptureKey, ProbeKind]:
        """By capture, whether it is a client's own step or which kind of probe."""
        return {key: owned.probe for key, owned in self.owned.items()}

    @cached_property
    def defense(self) -> dict[str, str]:
        """The columns ``defense`` and ``defense_options``."""
        return defense_columns(self.cell)

    @cached_property
    def metrics(self) -> list[Metric]:
        """The metrics asked for, or all that fit and are available."""
        known = registry(METRICS, "fedsim.metrics")
        wanted = self.cell.experiment.metrics
        chosen = [known[name]() for name in wanted or known]
        fitting = [m for m in chosen if m.modality in ("any", self.task.modality)]
        if self.task.spec.num_classes == 0:  # a language model has no classes
            fitting = [metric for metric in fitting if metric.name != "label_accuracy"]
        return [metric for metric in fitting if not metric.available()]

    def guess(self, label: str, key: CaptureKey) -> Guess:
        """Read one guess, checked against its hash."""
        path = guess_folder(self.cell, label) / f"{key}.json"
        if not path.exists():
            run = self.cell.folder.parent
            raise StoreError(f"{path}: not attacked. Run fedsim attack {run} first.")
        record = read_record(path, JobRecord)
        if record.sha256 is None:
            return Guess(record, None)
        tensors = load_tensors(path.with_suffix(".safetensors"), record.sha256)
        return Guess(record, self.task.examples(batch_from(tensors)))

    def rows(self) -> Iterator[ScoreRow]:
        """All rows of the cell."""
        others = {key: self._others(key) for key in self.keys}
        for entry in entries(self.cell.experiment):
            guesses = {key: self.guess(entry.label, key) for key in self.keys}
            for key, guess in guesses.items():
                yield from self._score(entry, key, guess, "none")
                if entry.table["name"] != PRIOR_ONLY:
                    controls = zip((OTHER_CLIENT, SECOND_CLIENT), others[key], strict=False)
                    for control, other in controls:
                        yield from self._score(entry, key, guesses[other], control)

    def _others(self, key: CaptureKey) -> list[CaptureKey]:
        """The captures of the controls: of the same kind, and of none of the same rows."""
        own = set(self.owned[key].rows)
        return other_clients(
            key,
            [
                other
                for other in self.keys
                if other == key
                or (
                    self.probes[other] == self.probes[key]
                    and own.isdisjoint(self.owned[other].rows)
                )
            ],
        )

    def _metrics(self, control: str) -> list[Metric]:
        """All, but for the second client, whom only the null test reads, the main one alone."""
        main = MAIN[self.task.modality]
        return [m for m in self.metrics if control != SECOND_CLIENT or m.name == main]

    def values(
        self, guess: Examples | None, truth: Examples, control: str = "none"
    ) -> tuple[dict[str, list[float]], Assignment, Examples]:
        """Metric -> one value an example; the assignment; the guesses in the truth's order."""
        guess = nothing(truth, self.task.modality) if guess is None else guess
        assignment = match(guess, truth, self.task.modality)
        aligned = align(guess, assignment, self.task.modality)
        metrics = self._metrics(control)
        scores = {metric.name: metric.score(aligned, truth).tolist() for metric in metrics}
        return scores, assignment, aligned

    def _score(
        self, entry: Entry, key: CaptureKey, guess: Guess, control: str
    ) -> Iterator[ScoreRow]:
        truth, record, config = self.truths[key], guess.record, self.cell.config
        owned = self.owned[key]
        values, assignment, _ = self.values(guess.examples, truth, control)
        common = {
            "run": self.cell.experiment.name,
            "cell": self.cell.name,
            "seed": config.seed,
            "task": self.task.spec.kind,
            "model": config.task.model,
            "dataset": config.task.dataset,
            "split": config.task.split,
            "protocol": config.federation.protocol,
            "batch_size": config.federation.batch_size,
            "local_steps": len(owned.steps),
            **self.defense,
            "attack": entry.table["name"],
            "attack_options": entry.options,
            "adaptive": entry.adaptive,
            "control": control,
            "round": key.round,
            "client": key.client,
            "probe": self.probes[key],
            "status": record.status,
            "reason": record.reason,
            "objective": record.objective,
            "level": level_of(config),
            "seconds": record.seconds,
        }
        for metric in self._metrics(control):
            for example, value in enumerate(values[metric.name]):
                yield ScoreRow(
                    **common,
                    example=example,
                    row=owned.rows[example],
                    metric=metric.name,
                    unit=metric.unit,
                    value=None if record.status == "skipped" or math.isnan(value) else value,
                    certified=certified(record, assignment[example]),
                )


def certified(record: JobRecord, index: int | None) -> bool | None:
    """Whether the attack certified the guess matched to an example; None where it never does."""
    if record.confidence is None:
        return None
    return index is not None and record.confidence[index] == "certified"


def other_clients(key: CaptureKey, keys: Sequence[CaptureKey]) -> list[CaptureKey]:
    """The next two clients of the same round, else the same client's next two rounds.

    An attack depends on its observation alone, so its guess on that client's update is the guess
    it makes when it is fed another client's update.
    """
    for near in (
        [k for k in keys if k.round == key.round],
        [k for k in keys if k.client == key.client],
    ):
        if len(near) > 1:
            here = near.index(key)
            return [*near[here + 1 :], *near[:here]][:2]
    return []


def defense_columns(cell: Cell) -> dict[str, str]:
    """The bare name of the chain, and its options as canonical JSON."""
    from fedsim.defenses import build_chain

    chain = build_chain(cell.config.defense, "defenses")
    return {"defense": chain.name, "defense_options": chain.options_json}


def score(run: Run) -> None:
    """Write scores, coverage, updates, signals and utility, each as a Parquet file."""
    with one_thread():  # images are small
        rows = [row for cell in run.cells for row in Scorer(cell).rows()]
    numbers = {key: rows for cell in run.cells for key, rows in row_numbers(cell).items()}
    pooled = {cell.name for cell in run.cells if cell.config.federation.cohort > 1}
    write_rows(run.root / "coverage.parquet", Coverage, coverage(rows, numbers, pooled))
    write_rows(run.root / "updates.parquet", UpdateRow, [r for c in run.cells for r in updates(c)])
    write_rows(run.root / "scores.parquet", ScoreRow, rows)
    write_rows(run.root / "signals.parquet", SignalRow, [r for c in run.cells for r in signals(c)])
    write_rows(run.root / "utility.parquet", UtilityRow, [r for c in run.cells for r in utility(c)])


def utility(cell: Cell) -> Iterator[UtilityRow]:
    """The utility of the cell's global model, round by round."""
    record = read_record(cell.folder / "simulation.json", SimulationRecord)
    defense, epsilons = defense_columns(cell), spent(cell)
    for point in record.utility:
        yield UtilityRow(
            run=cell.experiment.name,
            cell=cell.name,
            seed=cell.config.seed,
            **defense,
            round=point.round,
            metric=point.metric,
            value=point.value,
            epsilon=epsilons.get(point.round),
            bytes_up=record.bytes_up.get(point.round, 0),
            seconds=point.seconds,
        )
