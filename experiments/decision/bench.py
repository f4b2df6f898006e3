"""The stages of a run as a calibration uses them: cells are trained when they are needed."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from attacks.scheduling.ledger import Ledger
from experiments.console import Console
from experiments.decision.answer import Tried
from experiments.plan.cells import Cell
from experiments.plan.folder import Run, note_provenance
from experiments.plan.rehearsal import rehearse
from experiments.stages.attack import Attackers
from experiments.stages.integrity import check_captures
from experiments.stages.simulate import Simulator
from fedsim.records import STATUSES


@dataclass
class Bench:
    """Trains cells and counts their jobs.

    Attributes:
        team: runs the attacks.
        seconds: spent on training by this command.
    """

    team: Attackers
    ledger: Ledger
    console: Console
    seconds: float = 0.0

    def simulate(self, cells: Sequence[Cell]) -> None:
        """Train what is not trained yet, after a rehearsal.

        Raises:
            ConfigError: the defense does not fit the task.
            StoreError: captures of an earlier command were altered.
        """
        self.seconds += train(cells, self.console)

    def jobs(self, cells: Sequence[Cell]) -> int:
        """How many jobs on these cells have ended."""
        names = {cell.name for cell in cells}
        return sum(row.cell in names and row.state in STATUSES for row in self.ledger.rows())

    def say(self, tried: Tried) -> None:
        """Tell which strength got which word."""
        self.console.expect("calibrate", 1)
        self.console.advance("calibrate", f"{tried.name}: {tried.word} ({tried.attack})")

    def note(self, run: Run) -> None:
        """Record where the run came from."""
        note_provenance(run, "simulate", self.seconds)
        note_provenance(run, "attack", 0.0, self.team.devices, worked=self.team.ended > 0)


def train(cells: Sequence[Cell], console: Console) -> float:
    """Train what is not trained yet, after a rehearsal; the seconds that it took.

    Raises:
        ConfigError: a defense does not fit the task.
        StoreError: captures of an earlier command were altered.
    """
    pending = [cell for cell in cells if not cell.simulated]
    for cell in cells:
        if cell.simulated:
            check_captures(cell)
    started = time.monotonic()
    rehearse(pending)
    console.expect("simulate", len(pending))
    with Simulator() as simulator:  # whose clients would keep the attacks' CPUs on Ray
        for cell in pending:
            simulator.simulate(cell)
            console.advance("simulate", cell.name)
    return time.monotonic() - started
