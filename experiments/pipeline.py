"""The stages one after another; ``experiments.stages`` tells what each reads and writes."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from attacks.scheduling.ledger import Ledger
from experiments.console import Console
from experiments.plan.cells import Cell
from experiments.plan.folder import Run, RunStage, note_provenance
from experiments.stages.attack import Attackers, attackers
from experiments.stages.integrity import check_captures
from experiments.stages.simulate import Simulator
from fedsim.api.run import continuation
from fedsim.errors import ConfigError, StoreError
from fedsim.records import shown
from fedsim.store.files import remove_temporaries

if TYPE_CHECKING:
    from experiments.report.headline import ClosingRow

T = TypeVar("T")


@dataclass
class RunOutcome:
    """What a command did.

    Attributes:
        statuses: how many jobs of the run ended how.
        interrupted: the reason of each job that this machine ended, so that it has no score.
        without_gpu: how many jobs asked for a GPU and ran on the CPU.
        unrepeated: that jobs of an earlier commit were not run again; empty if none were.
        partial: that some jobs were not run when the run was scored; empty if all were.
        page: the report, if it was written.
        answer: what leaked under each defense; empty without a report.
    """

    run: Path
    stages: tuple[RunStage, ...]
    seconds: float = 0.0
    statuses: Counter[str] = field(default_factory=Counter)
    interrupted: list[str] = field(default_factory=list)
    without_gpu: int = 0
    unrepeated: str = ""
    partial: str = ""
    page: Path | None = None
    answer: list[ClosingRow] = field(default_factory=list)

    @property
    def failed(self) -> bool:
        """Whether a job failed, is unfinished or was interrupted."""
        bad = self.statuses["failed"] + self.statuses["timeout"] + len(self.interrupted)
        return "attack" in self.stages and bad > 0

    def table(self) -> dict[str, Any]:
        """As JSON data."""
        return {
            "run": str(self.run),
            "stages": self.stages,
            "seconds": round(self.seconds, 3),
            "jobs": dict(self.statuses),
            "interrupted": len(self.interrupted),
            "partial": self.partial,
            "report": None if self.page is None else str(self.page),
            "answer": [row._asdict() for row in self.answer],
        }

    def line(self) -> str:
        """The last line of the command."""
        words = [f"{'+'.join(self.stages)} of {self.run}: {self.seconds:.0f} s"]
        if "attack" in self.stages:
            counts = [
                f"{self.statuses[status]} {shown(status)}"
                for status in ("done", "skipped", "failed", "timeout", "exhausted")
                if self.statuses[status] or status == "done"
            ]
            words.append(f"jobs: {', '.join(counts)}")
        if self.interrupted:
            words.append(
                f"{len(self.interrupted)} interrupted and not scored ({self.interrupted[0]}): "
                f"correct the cause and run fedsim run {self.run}"
            )
        if self.unrepeated:
            words.append(self.unrepeated)
        if self.partial:
            words.append(f"{self.partial}, the others by fedsim run {self.run}")
        if self.without_gpu:
            words.append(f"{self.without_gpu} asked for a GPU, found none and ran on the CPU")
        if self.page is not None:
            words.append(f"report: {self.page}")
        if not self.answer:
            return "; ".join(words)
        from experiments.report.headline import closing_table

        return f"{'; '.join(words)}\n{closing_table(self.answer)}"


def execute(
    run: Run,
    stages: Sequence[RunStage],
    *,
    quiet: bool,
    redact: bool = False,
    retry_failed: bool = False,
) -> RunOutcome:
    """Run the stages; what is done already is not done again.

    Args:
        run: the run.
        stages: in their order.
        quiet: print nothing.
        redact: write the report that may be passed on.
        retry_failed: attack again what failed, is unfinished or was skipped.
    """
    outcome = RunOutcome(run.root, tuple(stages))
    started = time.monotonic()
    with Console(quiet) as console, Ledger(run.root / "jobs.sqlite") as ledger:
        remove_temporaries(run.root)
        if "simulate" in stages or "attack" in stages:
            with attackers(run, ledger, console, retry_failed=retry_failed) as team:
                _simulate_and_attack(run, stages, team, console)
            outcome.interrupted, outcome.without_gpu = team.interrupted, team.without_gpu
            outcome.unrepeated = team.unrepeated(run)
            names = {cell.name for cell in run.cells}
            outcome.statuses = Counter(row.state for row in ledger.rows() if row.cell in names)
        if "score" in stages:
            from experiments.stages.membership import score_membership
            from experiments.stages.progress import progress
            from experiments.stages.score import score

            counts = progress(run)
            outcome.interrupted = _timed(
                run, "score", lambda: score(run, console), counts._asdict()
            )
            score_membership(run)
            outcome.partial = str(counts)
        if "report" in stages:
            from experiments.report.headline import headline
            from experiments.stages.progress import scored_progress

            if not (run.root / "scores.parquet").exists():
                raise StoreError(f"{run.root}: nothing is scored. {continuation(run.root)}")

            write = partial(_judge_and_write, run, console, redact=redact)
            outcome.partial = str(scored_progress(run.provenance))
            outcome.page = _timed(run, "report", write)
            outcome.answer = headline(run.root)
    outcome.seconds = time.monotonic() - started
    return outcome


def _judge_and_write(run: Run, console: Console, *, redact: bool) -> Path:
    from experiments.report.assessment import write_findings
    from experiments.report.page import write_report
    from experiments.report.run_results import write_summary

    console.expect("report", 3)
    findings = write_summary(run.root)
    write_findings(run, findings.sections)
    console.advance("report", "numbers")
    return write_report(run.root, findings, redact=redact, console=console)


def _timed(
    run: Run, stage: RunStage, work: Callable[[], T], jobs: dict[str, int] | None = None
) -> T:
    started = time.monotonic()
    result = work()
    note_provenance(run, stage, time.monotonic() - started, jobs=jobs)
    return result


def _listener(
    cell: Cell, stages: Sequence[RunStage], team: Attackers
) -> Callable[[int], None] | None:
    if "attack" in stages and cell.experiment.attack_stage.when == "round":
        return lambda round_: team.submit(cell, round_)
    return None


def _simulate_and_attack(
    run: Run, stages: Sequence[RunStage], team: Attackers, console: Console
) -> None:
    if "simulate" in stages:
        started = time.monotonic()
        pending = [cell for cell in run.cells if not cell.simulated]
        console.expect("simulate", len(run.cells))
        with Simulator() as simulator:
            for cell in run.cells:
                if cell in pending:
                    simulator.simulate(cell, _listener(cell, stages, team))
                console.advance("simulate", cell.name)
        if pending:
            note_provenance(run, "simulate", time.monotonic() - started, _client_devices(run))
    if "attack" in stages:
        attack(run, team)


def attack(run: Run, team: Attackers) -> None:
    """Attack the captures of all cells, and wait for the last job."""
    started = time.monotonic()
    for cell in run.cells:
        if not cell.simulated:
            raise ConfigError(
                f"{cell.folder}: not simulated. Run fedsim simulate {run.root} first."
            )
        check_captures(cell)
    team.announce(run.cells)
    for cell in run.cells:
        team.submit(cell)
    team.drain()
    seconds, worked = time.monotonic() - started, team.ended > 0
    note_provenance(run, "attack", seconds, team.devices, worked=worked)


def _client_devices(run: Run) -> set[str]:
    from fedsim.process import device_for, device_name

    shares = {experiment.federation.client_gpus for experiment in run.plan.experiments}
    devices = {share: device_for(share) for share in shares}
    # Clients never fall back to the CPU.
    return {
        "a GPU of the cluster" if share and device.type == "cpu" else device_name(device)
        for share, device in devices.items()
    }
