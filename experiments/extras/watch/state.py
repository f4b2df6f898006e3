"""What a run folder tells while its run goes on: read only, and each guess is scored once."""

import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from fedsim.api import Forming, LedgerRow, Run, StoredCell
from fedsim.api.calls import (
    UTILITY,
    DefenseInSetting,
    content,
    metric_named,
    places,
    planned_jobs,
    reconstructions,
    title,
)
from fedsim.api.guesses import matched, read_guess
from fedsim.errors import FedsimError
from fedsim.process import one_thread
from fedsim.records import MAIN, PRIOR_ONLY, STATUSES, Modality
from fedsim.store.capture import CaptureKey

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
        self._places, self._titles = places(run.root), reconstructions(run.root)
        self._scored: dict[tuple[str, str, int, int], tuple[CurveKey, list[float], Glimpse]] = {}
        self._planned: dict[str, int] = {}

    def ended(self) -> bool:
        """Whether no command is at work, and the report is written."""
        return not self.run.working and self.run.page.is_file()

    def state(self) -> State:
        """The run now; what cannot be read yet is said among the reasons."""
        faults, cells_now = list[str](), self.run.cells
        rows = [row for row in self.run.ledger if row.cell in self._places]
        rows = sorted(rows, key=lambda row: row.ended or 0)
        by_cell = defaultdict[str, list[LedgerRow]](list)
        for row in rows:
            by_cell[row.cell].append(row)
        cells, utility = [], dict[CurveKey, list[tuple[int, float]]]()
        for cell in cells_now:
            try:
                self._score(cell, by_cell[cell.name])
            except (FedsimError, OSError) as fault:  # often half-written, and then read next time
                faults.append(str(fault))
            training, points = self._training(cell)
            cells.append(self._cell(cell, training, by_cell[cell.name]))
            for name in [name for name in UTILITY if name in points][:1]:
                utility.setdefault(CurveKey(name, "", self._places[cell.name]), points[name])
        leakage = defaultdict[CurveKey, dict[int, list[float]]](lambda: defaultdict(list))
        for (_, _, number, _), (line, values, _) in sorted(self._scored.items()):
            leakage[line][number] += values
        shown = (self._scored.get((r.cell, r.label, r.round, r.client)) for r in reversed(rows))
        glimpses = [
            scored[2] for scored in shown if scored and scored[2].attack != title(PRIOR_ONLY)
        ]
        failed = [f"{row.label} on {row.cell}: {row.reason}" for row in rows if _failed(row)]
        return State(
            working=self.run.working,
            cells=tuple(cells),
            running=tuple(self._running(rows)),
            leakage={line: dict(by_round) for line, by_round in leakage.items()},
            utility=utility,
            latest=tuple(glimpses[:LATEST]),
            reasons=(*list(dict.fromkeys(failed))[-LATEST:], *dict.fromkeys(faults)),
        )

    def _running(self, rows: list[LedgerRow]) -> Iterator[Running]:
        live = self.run.forming
        for row in rows:
            name = f"{row.cell}/{row.label}/{CaptureKey(round=row.round, client=row.client)}"
            if row.state == "running" and (name in live or not live):  # else of another's group
                seconds = time.time() - (row.started or time.time())
                yield self._attack(row.cell, row.label), row, seconds, live.get(name)

    def _attack(self, cell: str, label: str) -> str:
        return self._titles[cell].get(label, label)  # of a control

    def _cell(self, cell: StoredCell, training: str, rows: list[LedgerRow]) -> CellState:
        if cell.simulated and cell.name not in self._planned:
            self._planned = planned_jobs(self.run.root)
        return CellState(
            place=self._places[cell.name],
            seed=cell.config.seed,
            training=training,
            jobs=Counter(row.state for row in rows),
            planned=self._planned.get(cell.name),
        )

    def _training(self, cell: StoredCell) -> tuple[str, dict[str, list[tuple[int, float]]]]:
        """Where the training stands, and the utility so far by its name."""
        rounds, points = cell.config.federation.rounds, cell.utility
        if cell.simulated:
            said = f"{rounds} of {rounds} rounds"
        elif points:
            said = f"{max(point.round for point in points)} of {rounds} rounds"
        else:
            said = "waits"
        curves = defaultdict[str, list[tuple[int, float]]](list)
        for point in points:
            curves[point.metric].append((point.round, point.value))
        return said, curves

    def _score(self, cell: StoredCell, rows: list[LedgerRow]) -> None:
        new = [
            row
            for row in rows
            if row.state in {"done", "exhausted"}
            and row.label in self._titles[cell.name]
            and (row.cell, row.label, row.round, row.client) not in self._scored
        ]
        if not new:
            return
        victims = cell.victims
        metric = metric_named(MAIN[victims.task.modality])
        with one_thread():
            for row in new:
                key = CaptureKey(round=row.round, client=row.client)
                truth, task = victims.examples(key), victims.task
                match = matched(read_guess(victims, row.label, key), truth, task.modality)
                values = metric.score(match.aligned, truth).tolist()
                attack = self._attack(cell.name, row.label)
                best = max(range(len(values)), key=values.__getitem__)
                glimpse = Glimpse(
                    *(row.cell, attack, key, metric.name, values[best], task.modality),
                    original=content(truth, best, task),
                    guess=None
                    if match.assignment[best] is None
                    else content(match.aligned, best, task),
                )
                line = CurveKey(metric.name, attack, self._places[cell.name])
                self._scored[row.cell, row.label, row.round, row.client] = line, values, glimpse


def _failed(row: LedgerRow) -> bool:
    return row.state in STATUSES and row.state not in {"done", "skipped", "exhausted"}
