"""What a run folder tells while its run goes on: read only, and each guess is scored once."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, TypeAlias

from experiments.analysis.findings import UTILITY
from experiments.analysis.keys import DefenseInSetting
from experiments.plan.cells import Cell
from experiments.plan.entries import entries
from experiments.plan.folder import Run
from experiments.stages.attack import jobs
from experiments.stages.gallery import content
from experiments.stages.utility import defense_of
from experiments.wording.names import settings, title, told_apart
from fedsim.api.guesses import matched, read_guess
from fedsim.api.ledger import LedgerRow, locked, read_ledger
from fedsim.api.live import Forming, read_live
from fedsim.api.victims import Victims
from fedsim.build import registry
from fedsim.capture import CaptureKey
from fedsim.errors import FedsimError
from fedsim.files import read_record
from fedsim.metrics import METRICS
from fedsim.records import (
    MAIN,
    PRIOR_ONLY,
    STATUSES,
    TRAINING,
    Modality,
    SimulationRecord,
    TrainingRecord,
)
from fedsim.threads import one_thread

Running: TypeAlias = tuple[str, LedgerRow, float, Forming | None]
LATEST = 6
"""Ended jobs whose guesses are shown."""


class CurveKey(NamedTuple):
    """One attack under one defense, by a metric; or utility, without an attack."""

    metric: str
    attack: str
    place: DefenseInSetting


@dataclass(frozen=True)
class CellState:
    """One cell: its jobs by state, of ``planned`` where its captures are complete."""

    place: DefenseInSetting
    seed: int
    training: str
    jobs: Counter[str]
    planned: int | None


@dataclass(frozen=True)
class Glimpse:
    """The best guess of an ended job beside the private example."""

    cell: str
    attack: str
    key: CaptureKey
    metric: str
    value: float
    modality: Modality
    original: bytes
    guess: bytes | None


@dataclass(frozen=True)
class State:
    """A run at one moment.

    Attributes:
        working: whether a command is at work on the run.
        running: attack, row of the ledger, seconds, and what the job has where it tells.
        leakage: by line and round, a value for each example.
        utility: by line, (round, value).
        reasons: why jobs failed, the latest last; and what could not be read.
    """

    working: bool
    cells: tuple[CellState, ...] = ()
    running: tuple[Running, ...] = ()
    leakage: dict[CurveKey, dict[int, list[float]]] = field(default_factory=dict)
    utility: dict[CurveKey, list[tuple[int, float]]] = field(default_factory=dict)
    latest: tuple[Glimpse, ...] = ()
    reasons: tuple[str, ...] = ()


class Watcher:
    """Reads the state of a run again and again, and remembers what it has scored."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self._labels: dict[str, str] = {}
        for experiment in run.plan.experiments:
            mine = {c.name: c.config for c in run.cells if c.experiment.name == experiment.name}
            first = experiment.name if len(run.plan.experiments) > 1 else ""
            for name, label in settings(mine, {}).items():
                self._labels[name] = ", ".join(filter(None, (first, label)))
        self._entries = {c.name: {e.label: e for e in entries(c.experiment)} for c in run.cells}
        self._scored: dict[tuple[str, str, int, int], tuple[CurveKey, list[float], Glimpse]] = {}
        self._planned: dict[str, int] = {}

    @property
    def page(self) -> Path:
        """The report that the run ends with."""
        return self.run.root / "report" / "index.html"

    def ended(self) -> bool:
        """Whether no command is at work, and the report is written."""
        return not locked(self.run.root / "jobs.sqlite") and self.page.is_file()

    def state(self) -> State:
        """The run now; what cannot be read yet is said among the reasons."""
        path, faults = self.run.root / "jobs.sqlite", list[str]()
        rows = read_ledger(path) if path.exists() else []
        names = {cell.name for cell in self.run.cells}
        rows = sorted((row for row in rows if row.cell in names), key=lambda row: row.ended or 0)
        by_cell = defaultdict[str, list[LedgerRow]](list)
        for row in rows:
            by_cell[row.cell].append(row)
        cells, utility = [], dict[CurveKey, list[tuple[int, float]]]()
        for cell in self.run.cells:
            try:
                self._score(cell, by_cell[cell.name])
            except (FedsimError, OSError) as fault:  # often half-written, and then read next time
                faults.append(str(fault))
            training, points = self._training(cell)
            cells.append(self._cell(cell, training, by_cell[cell.name]))
            for name in [name for name in UTILITY if name in points][:1]:
                utility.setdefault(CurveKey(name, "", self._place(cell)), points[name])
        leakage = defaultdict[CurveKey, dict[int, list[float]]](lambda: defaultdict(list))
        for (_, _, number, _), (line, values, _) in sorted(self._scored.items()):
            leakage[line][number] += values
        shown = (self._scored.get((r.cell, r.label, r.round, r.client)) for r in reversed(rows))
        glimpses = [
            scored[2] for scored in shown if scored and scored[2].attack != title(PRIOR_ONLY)
        ]
        failed = [f"{row.label} on {row.cell}: {row.reason}" for row in rows if _failed(row)]
        return State(
            working=locked(path),
            cells=tuple(cells),
            running=tuple(self._running(rows)),
            leakage={line: dict(by_round) for line, by_round in leakage.items()},
            utility=utility,
            latest=tuple(glimpses[:LATEST]),
            reasons=(*list(dict.fromkeys(failed))[-LATEST:], *dict.fromkeys(faults)),
        )

    def _running(self, rows: list[LedgerRow]) -> Iterator[Running]:
        live = read_live(self.run.root)
        for row in rows:
            name = f"{row.cell}/{row.label}/{CaptureKey(round=row.round, client=row.client)}"
            if row.state == "running" and (name in live or not live):  # else of another's group
                seconds = time.time() - (row.started or time.time())
                yield self._attack(row.cell, row.label), row, seconds, live.get(name)

    def _attack(self, cell: str, label: str) -> str:
        known = self._entries[cell]
        if label not in known:  # of a control
            return label
        return told_apart(known[label].key, [entry.key for entry in known.values()])

    def _place(self, cell: Cell) -> DefenseInSetting:
        return DefenseInSetting(self._labels[cell.name], *defense_of(cell))

    def _cell(self, cell: Cell, training: str, rows: list[LedgerRow]) -> CellState:
        if cell.simulated and cell.name not in self._planned:
            self._planned[cell.name] = sum(len(spec.keys) for spec in jobs(cell))
        return CellState(
            place=self._place(cell),
            seed=cell.config.seed,
            training=training,
            jobs=Counter(row.state for row in rows),
            planned=self._planned.get(cell.name),
        )

    def _training(self, cell: Cell) -> tuple[str, dict[str, list[tuple[int, float]]]]:
        """Where the training stands, and the utility so far by its name."""
        path, rounds = cell.folder / TRAINING, cell.config.federation.rounds
        if cell.simulated:
            points = read_record(cell.folder / "simulation.json", SimulationRecord).utility
            said = f"{rounds} of {rounds} rounds"
        elif path.exists():
            points = read_record(path, TrainingRecord).utility
            said = f"{max((point.round for point in points), default=0)} of {rounds} rounds"
        else:
            points, said = (), "waits"
        curves = defaultdict[str, list[tuple[int, float]]](list)
        for point in points:
            curves[point.metric].append((point.round, point.value))
        return said, curves

    def _score(self, cell: Cell, rows: list[LedgerRow]) -> None:
        known = self._entries[cell.name]
        new = [
            row
            for row in rows
            if row.state in {"done", "exhausted"}
            and row.label in known
            and known[row.label].infers == "rows"
            and (row.cell, row.label, row.round, row.client) not in self._scored
        ]
        if not new:
            return
        victims = Victims(cell)
        metric = registry(METRICS, "fedsim.metrics")[MAIN[victims.task.modality]]()
        with one_thread():
            for row in new:
                key = CaptureKey(round=row.round, client=row.client)
                truth, modality = victims.examples(key), victims.task.modality
                match = matched(read_guess(victims, row.label, key), truth, modality)
                values = metric.score(match.aligned, truth).tolist()
                attack = self._attack(cell.name, row.label)
                best = max(range(len(values)), key=values.__getitem__)
                glimpse = Glimpse(
                    *(row.cell, attack, key, metric.name, values[best], modality),
                    original=content(truth, best, modality),
                    guess=None
                    if match.assignment[best] is None
                    else content(match.aligned, best, modality),
                )
                line = CurveKey(metric.name, attack, self._place(cell))
                self._scored[row.cell, row.label, row.round, row.client] = line, values, glimpse


def _failed(row: LedgerRow) -> bool:
    return row.state in STATUSES and row.state not in {"done", "skipped", "exhausted"}
