"""What the core does for extras, a call each; ``fedsim.api`` offers these."""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attacks import attacks_for
from attacks.base import Attack
from attacks.scheduling.isolation import run_serial
from attacks.scheduling.jobs import Demand, plan
from attacks.scheduling.ledger import Ledger
from experiments.analysis.keys import DefenseInSetting
from experiments.analysis.paired import Values, scored
from experiments.invocation import Invocation
from experiments.pipeline import execute
from experiments.plan.cells import Cell
from experiments.plan.config import Plan
from experiments.plan.entries import Entry, entries
from experiments.plan.folder import Run
from experiments.stages.attack import donors_of, jobs
from experiments.stages.integrity import check_cell
from experiments.stages.utility import defense_of
from experiments.wording.names import settings, told_apart, utility_unit
from fedsim.config.build import build, registry
from fedsim.data.rows import Split
from fedsim.metrics import METRICS
from fedsim.metrics.base import Metric
from fedsim.process import one_thread
from fedsim.store.capture import CaptureStore
from fedsim.store.truth import TruthStore

if TYPE_CHECKING:
    from experiments.analysis.evidence import Verdict
    from fedsim.records import JobRecord, Modality, ScoreRow

SEED_BITS = 62
"""Of a seed that is drawn; TOML has integers of 63 bits."""


def simulate_secretly(
    experiment: str, out: Path, sets: Sequence[str] = (), *, quiet: bool = False
) -> Path:
    """Simulate an experiment under a seed that nobody can search.

    The seed of a run draws its rows, and the weights of its first broadcast, so that who has it
    draws the victims again.

    Args:
        experiment: a file or a shipped one.
        out: the run's folder.
        sets: overrides, such as ``federation.rounds=1``.
        quiet: print errors alone.

    Returns:
        The run's folder.
    """
    given = Invocation(experiment, [*sets], out=out)
    run = replace(given, sets=[*given.sets, *secret_settings(given.plan())]).run(("simulate",))
    execute(run, ("simulate",), quiet=quiet)
    return run.root


def secret_settings(plan: Plan) -> list[str]:
    """Overrides by which nobody else can simulate an experiment again.

    A seed, and the key of rows that a built-in data set draws. Exactly so many bits, as a short
    number is taken for no secret.
    """
    changes = [f"seeds=[{_secret()}]"]
    for experiment in plan.experiments:
        split = Split.parse(experiment.task.split, experiment.task.dataset)
        if split.key is not None:
            drawn = replace(split, name=f"drawn@{_secret():x}")
            changes.append(f"task.split={drawn}")
    return changes


def _secret() -> int:
    return secrets.randbits(SEED_BITS - 1) | 1 << (SEED_BITS - 1)


def check_run(run: Path) -> None:
    """Check the captures and the truth of each cell against the hashes of its simulation.

    Raises:
        StoreError: a file was changed, added or lost.
    """
    for cell in Run.open(run).cells:
        check_cell(cell)


def without_null(run: Path) -> list[str]:
    """Captures of whose attack no other client's guess can be the null: nobody has equal facts."""
    return [
        str(key)
        for cell in Run.open(run).cells
        for donors in [donors_of(cell)]
        for key in cell.captures.keys()
        if not any(donor.job is None for donor in donors.get(key, ()))
    ]


def named_attack(table: Mapping[str, Any], where: str) -> Attack:
    """The attack of a name and options, built in or installed.

    Raises:
        ConfigError: there is none, or an option does not fit.
    """
    return build(attacks_for(table), table, where)


def attack_captures(
    captures: Path,
    guesses: Path,
    label: str,
    table: Mapping[str, Any],
    seed: int,
    seconds: float | None = None,
) -> list[JobRecord]:
    """Attack every capture of a folder in this process; no truth is read.

    Args:
        captures: of one cell.
        guesses: where ``<label>/<capture>.safetensors`` and ``.json`` are written.
        label: of the attack.
        table: its name and options.
        seed: of the attack.
        seconds: that each job may take; the default of an experiment if not given.
    """
    demand = Demand() if seconds is None else Demand(budget=seconds)
    specs = plan(captures, guesses, label, table, seed, demand)
    with tempfile.TemporaryDirectory() as place, Ledger(Path(place) / "jobs.sqlite") as ledger:
        return run_serial(specs, ledger)


@dataclass(frozen=True)
class _Elsewhere(Cell):
    """A cell whose guesses lie elsewhere: scoring leaves the run as it is."""

    stored: Path

    @property
    def captures(self) -> CaptureStore:
        """Of the run."""
        return CaptureStore(self.stored / "captures")

    @property
    def truth(self) -> TruthStore:
        """Of the run."""
        return TruthStore(self.stored / "truth")


def score_guesses(run: Path, guesses: Path, infers: Mapping[str, str]) -> list[ScoreRow]:
    """Score guesses that lie outside of a run against its truth, with all controls.

    Args:
        run: of one cell.
        guesses: holds a folder for each label, as ``attack_captures`` writes them.
        infers: label -> ``rows`` or ``membership``, which are all of one kind but ``prior_only``.
    """
    from experiments.stages.membership import MembershipScorer
    from experiments.stages.score import Scorer
    from fedsim.api.victims import Victims

    (cell,) = Run.open(run).cells
    working = _Elsewhere(guesses.parent, cell.experiment, cell.config, cell.folder)
    entries = tuple(
        Entry(label, {"name": label}, "{}", adaptive=False, infers=what)
        for label, what in infers.items()
    )
    scorer = Scorer(Victims(working), guesses=entries)
    with one_thread():
        if "membership" in infers.values():
            return list(MembershipScorer(scorer).rows())
        return list(scorer.rows())


def verdict_of(rows: Sequence[ScoreRow], modality: Modality) -> Verdict:
    """The judge's word on scores of one defense, without a run of its undefended victims."""
    from experiments.analysis.frames import PLACE, score_frame
    from experiments.analysis.verdicts import judge, metrics

    table = score_frame(rows, {row.cell: "" for row in rows})
    place = DefenseInSetting(*table[PLACE].iloc[0])
    return judge(place, table, {name: scored(table, name) for name in metrics(modality)}, modality)


def values_of(rows: Sequence[ScoreRow], metric: str) -> dict[tuple[str, str], Values]:
    """(Attack, control) -> its values by victim, of one metric, as verdicts compare them."""
    from experiments.analysis.frames import score_frame

    table = score_frame(rows, {row.cell: "" for row in rows})
    return {(each.attacker.attack, each.control): each.values for each in scored(table, metric)}


def places(run: Path) -> dict[str, DefenseInSetting]:
    """Cell -> the defense and the setting that it is filed under, told apart as in the report."""
    opened, labels = Run.open(run), dict[str, str]()
    several = len(opened.plan.experiments) > 1
    for experiment in opened.plan.experiments:
        mine = {c.name: c.config for c in opened.cells if c.experiment.name == experiment.name}
        first = experiment.name if several else ""
        for name, label in settings(mine, {}).items():
            labels[name] = ", ".join(filter(None, (first, label)))
    return {
        cell.name: DefenseInSetting(labels[cell.name], *defense_of(cell)) for cell in opened.cells
    }


def reconstructions(run: Path) -> dict[str, dict[str, str]]:
    """Cell -> label -> title of each attack that guesses rows; of controls there is none."""
    titles = {}
    for cell in Run.open(run).cells:
        known = [entry for entry in entries(cell.experiment) if entry.infers == "rows"]
        keys = [entry.key for entry in entries(cell.experiment)]
        titles[cell.name] = {entry.label: told_apart(entry.key, keys) for entry in known}
    return titles


def planned_jobs(run: Path) -> dict[str, int]:
    """Cell -> how many captures its attacks and controls are for; of cells that are simulated."""
    return {
        cell.name: sum(len(spec.keys) for spec in jobs(cell))
        for cell in Run.open(run).cells
        if cell.simulated
    }


def metric_named(name: str) -> Metric:
    """A metric, built in or installed."""
    return registry(METRICS, "fedsim.metrics")[name]()


def unit_of(metric: str) -> str:
    """The unit of a metric or of a measure of utility."""
    known = registry(METRICS, "fedsim.metrics")
    return known[metric].unit if metric in known else utility_unit(metric)
