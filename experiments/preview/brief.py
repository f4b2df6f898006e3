"""``fedsim show`` at a glance: what an experiment says, its cells and jobs, what such jobs took."""

import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from statistics import median

import tomli_w

from experiments.plan.cells import Cell, make_cells
from experiments.plan.config import ExperimentConfig, Plan
from experiments.plan.levels import level_of
from experiments.wording.names import duration
from experiments.wording.prose import counted
from fedsim.api.ledger import read_ledger
from fedsim.config.cell import CellConfig
from fedsim.errors import StoreError

RUNS = Path("runs")
"""Where runs lie, whose ledgers say how long jobs took."""


def brief(plan: Plan) -> str:
    """What the plan's files say but defaults, the cells, and the jobs of each attack."""
    cells, known = make_cells(plan, RUNS / plan.name, attacks=False), _took(RUNS)
    parts = []
    for experiment in plan.experiments:
        mine = [cell for cell in cells if cell.experiment.name == experiment.name]
        given = experiment.model_dump(mode="json", exclude_none=True, exclude_defaults=True)
        lines = [tomli_w.dumps(given).strip(), "", "# cells, each with its realism level"]
        lines += [f"{cell.name}  {level_of(cell.config)}" for cell in mine]
        parts.append("\n".join([*lines, "", "# jobs", *_jobs(experiment, mine, known)]))
    more = "fedsim show --all: defaults, threat model, exact attacks that can work, disk and memory"
    return "\n\n".join([*parts, more])


def captures(config: CellConfig) -> int:
    """Number of captures; an upper bound if both participation and capture are partial."""
    replies = config.federation.replies
    clients = min(len(config.capture.clients) or replies, replies)
    return len(config.captured_rounds) * (clients + config.probes.count)


def _jobs(
    experiment: ExperimentConfig, cells: list[Cell], known: dict[tuple[str, str], list[float]]
) -> Iterator[str]:
    stage, count = experiment.attack_stage, sum(captures(cell.config) for cell in cells)
    for name in [str(table["name"]) for table in experiment.attacks]:
        seconds = known.get((experiment.task.model, name), [])
        each = median(seconds) if seconds else 0.0
        said = (
            f"{duration(each)} each, the median of {counted(len(seconds), 'job')} of it on "
            f"{experiment.task.model} in {RUNS}/, so about {duration(each * count)} of work"
            if seconds
            else f"none ran on {experiment.task.model} in {RUNS}/; each ends by itself or after "
            f"{duration(stage.time_budget)}"
        )
        yield f"{name}: {counted(count, 'capture')}; {said}"


def _took(runs: Path) -> dict[tuple[str, str], list[float]]:
    """(model, attack with any options) -> seconds of each job that is done, in all runs here."""
    seconds: dict[tuple[str, str], list[float]] = {}
    for path in sorted(runs.glob("*/jobs.sqlite")):
        with suppress(StoreError, OSError, ValueError, KeyError):  # a run that cannot be read
            for row in read_ledger(path):
                if row.state == "done":
                    cell = json.loads((path.parent / row.cell / "cell.json").read_bytes())
                    attack = row.label.partition("-")[0]
                    seconds.setdefault((cell["task"]["model"], attack), []).append(row.seconds)
    return seconds
