"""From the command line to a calibration in its run folder."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.analysis.held import Target
from experiments.decision.answer import Question
from experiments.decision.families import (
    FEWEST_SEEDS,
    SearchedFamily,
    attacked,
    families,
    only_experiment,
    parse_ranges,
    unattacked,
    utility_seeds,
)
from experiments.decision.search import most_tried, shared
from experiments.decision.targets import check_clients, parse_costs, parse_targets
from experiments.plan.cells import chain_tables
from experiments.plan.config import ExperimentConfig, Plan
from experiments.plan.entries import allows_for, entries
from experiments.plan.folder import Run
from fedsim.errors import ConfigError
from fedsim.store.files import digest, read_record, write_json

FOLDER = "calibration"
"""Of the answer, in the run folder."""
_MACHINE = {
    "federation": ("engine", "client_workers", "client_timeout", "client_gpus", "tf32"),
    "attack_stage": ("when", "workers", "cpus", "gpus", "address", "retries", "grace"),
}
"""Options that change no result but by rounding."""


@dataclass(frozen=True)
class CalibrationTask:
    """What is to be searched for what."""

    experiment: ExperimentConfig
    families: tuple[SearchedFamily, ...]
    targets: tuple[Target, ...]
    question: Question

    def most(self) -> Plan:
        """The plan with as many strengths as can be tried, all of whose clients are attacked.

        One strength of each family is trained under all seeds.
        """
        tried = [
            family.defense(index)
            for family in self.families
            for index in range(most_tried(len(family.values)))
        ]
        weakest = [family.defense(0) for family in self.families] if self.targets else []
        return self.plan(tried, weakest, self.question.seeds)

    @property
    def unadapted(self) -> list[str]:
        """Titles of the families that no attack is adapted to, so that no strength can hold."""
        keys = [entry.key for entry in entries(self.experiment) if entry.infers == "rows"]
        return [
            family.title
            for family in self.families
            for options in [json.dumps(chain_tables(dict(family.defense(0)), "defenses"))]
            if self.targets and not any(allows_for(key, options) for key in keys)
        ]

    def plan(
        self,
        defenses: Sequence[Mapping[str, Any]],
        held: Sequence[Mapping[str, Any]] = (),
        seeds: int = FEWEST_SEEDS,
    ) -> Plan:
        """The plan with these defenses beside none; without targets nothing is attacked.

        Args:
            defenses: that are attacked, or that are trained where nothing is to be held.
            held: of these, those that are trained to the end.
            seeds: under how many, where the experiment names none.
        """
        experiment = self.experiment
        if not self.targets:
            return _of(experiment, unattacked(experiment, self.seeds, defenses))
        part = attacked(experiment, self.families, defenses)
        more = utility_seeds(experiment, seeds)
        if part.federation.rounds < experiment.federation.rounds:
            more = (*experiment.seeds, *more)
        if not held or not more:
            return _of(experiment, part)
        return _of(experiment, part, unattacked(experiment, more, held))

    @property
    def seeds(self) -> tuple[int, ...]:
        """All under which utility is trained."""
        return tuple(sorted({*self.experiment.seeds, *utility_seeds(self.experiment)}))


def _of(experiment: ExperimentConfig, *parts: ExperimentConfig) -> Plan:
    return Plan(name=experiment.name, experiments=parts)


def ask(
    plan: Plan,
    *,
    hold: Sequence[str],
    lose: Sequence[str],
    share: float,
    ranges: Sequence[str],
    depth: int,
    group: int,
    error: float,
    seeds: int,
) -> CalibrationTask:
    """Check everything that can be checked before anything is trained.

    Args:
        plan: of one experiment.
        hold: targets, ``name=value``; none searches for the strongest that is affordable.
        lose: limits of the cost, ``measure=share``.
        share: largest share of clients that may be hit, where a target allows none that is.
        ranges: ``defense=weakest:strongest``.
        depth: most strengths tried in a family; 2^depth - 1 of them are told apart.
        group: clients attacked before the first look.
        error: probability of any false ``holds``, and of any false ``leaks``.
        seeds: most under which what holds is trained.

    Raises:
        ConfigError: one of them does not fit.
    """
    experiment = only_experiment(plan)
    targets = parse_targets(hold, share) if hold or not lose else ()
    asked_ranges = parse_ranges(ranges)
    searched_families = families(experiment, asked_ranges, 2**depth - 1)
    errors = shared(error, [len(family.values) for family in searched_families])
    check_clients(targets, errors.holds, experiment.federation.clients)
    question = Question(
        experiment=_fingerprint(experiment),
        hold=tuple(target.text() for target in targets),
        share=share,
        lose=parse_costs(lose),
        ranges=asked_ranges,
        strengths=2**depth - 1,
        group=group,
        error=error,
        seeds=seeds,
    )
    return CalibrationTask(experiment, searched_families, targets, question.sealed())


def begin(task: CalibrationTask, root: Path) -> None:
    """Make the run folder and note the question there, or go on with the same one.

    Raises:
        ConfigError: the folder holds the search for another answer.
    """
    path = root / FOLDER / "question.json"
    if path.exists():
        if read_record(path, Question) != task.question:
            raise ConfigError(
                f"--out {root}: the folder holds the search for another answer, or of a changed "
                "experiment. Name another folder."
            )
        return
    if any(root.glob("*/simulation.json")):
        raise ConfigError(f"--out {root}: the folder holds a run without a search. Name another.")
    Run.create(task.plan(()), root)
    write_json(path, task.question)


def _fingerprint(experiment: ExperimentConfig) -> str:
    table = experiment.model_dump(mode="json", exclude_defaults=True)
    for section, names in _MACHINE.items():
        for name in names:
            table.get(section, {}).pop(name, None)
        if not table.get(section, True):
            del table[section]
    return digest(json.dumps(table, sort_keys=True).encode())[:16]
