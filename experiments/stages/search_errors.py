"""Whether an attack missed what an update tells, or the update does not tell it.

An attack chooses between guesses by a number. Where the private rows have a better one than the
guess, a search of more guesses would have come nearer: a search error, as decoders of translation
have them (Stahlberg and Byrne 2019, arXiv:1908.10090). Where the guess has the better one, no
search by this number returns the private rows, and only an attack that reads the update otherwise
can.
"""

from collections.abc import Iterator
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from statistics import median
from typing import NamedTuple

import torch

from attacks import attack_classes
from attacks.base import Attack
from attacks.scheduling.jobs import JobSpec
from attacks.scheduling.prepared import job_of
from attacks.scheduling.worker import silent
from experiments.plan.cells import Cell
from experiments.plan.entries import entries
from experiments.stages.attack import jobs
from experiments.stages.coverage import THRESHOLDS
from experiments.stages.utility import defense_of
from fedsim.api.guesses import matched, read_guess
from fedsim.api.victims import Victims
from fedsim.config.build import build
from fedsim.metrics import METRICS
from fedsim.process import one_thread
from fedsim.records import MAIN, AttackKey
from fedsim.seeds import generator
from fedsim.store.capture import CaptureKey
from fedsim.store.files import Record
from fedsim.store.rows import read_rows
from fedsim.tasks import is_loadable, load_task
from fedsim.tasks.base import Task
from fedsim.types import Batch

SEARCHES = "searches.parquet"
"""Of all cells, in the run folder."""
_MOST = 24
"""Updates of a cell at which an attack's objective is asked for, each of which takes as long as one
of its steps. Of half as many, a tenth is one and a single error keeps a defense open; of twice as
many the share is known to .04 in place of .06."""


class SearchErrors(Record):
    """How often an attack's own objective prefers the private rows to its guess of them.

    Attributes:
        attack: its name; with the next two as in the rows of scores.
        unit: of the objective; ``nats`` or none.
        recovered: updates all of whose rows passed the threshold of the main metric.
        missed: the other updates with a guess of as many rows.
        errors: of these, those at which the objective of the private rows is the lower.
        excess: median over the missed of the guess's objective less that of the private rows.
    """

    run: str
    cell: str
    defense: str
    defense_options: str
    attack: str
    attack_options: str
    adaptive: bool
    unit: str
    recovered: int
    missed: int
    errors: int
    excess: float | None

    @property
    def attacker(self) -> AttackKey:
        """As the rows of scores name it."""
        return AttackKey(self.attack, self.attack_options, self.adaptive)


def search_errors(cell: Cell) -> Iterator[SearchErrors]:
    """One record for each attack of a cell that names its objective and made a guess.

    Asked are the first updates whose private rows are known, ``_MOST``; none of a network whose
    code the run folder alone names: a word of holding then says that the power is not measured.
    """
    if not is_loadable(cell.captures.root):
        return
    by_label: dict[str, list[JobSpec]] = {}
    for spec in jobs(cell):
        if not spec.donors:
            by_label.setdefault(spec.label, []).append(spec)
    victims, task = Victims(cell), load_task(cell.captures.root)
    for entry in entries(cell.experiment):
        specs = by_label.get(entry.label, [])
        attack = build(attack_classes(), entry.table, f"attacks.{entry.label}")
        if type(attack).objectives is Attack.objectives:
            continue
        with one_thread():
            asked = (
                _gain(victims, task, attack, spec, key)
                for spec in specs
                for key in spec.keys
                if key in victims.records
            )
            gains = list(islice((gain for gain in asked if gain is not None), _MOST))
        missed = [gain.excess for gain in gains if not gain.recovered]
        if gains:
            yield SearchErrors(
                run=cell.experiment.name,
                cell=cell.name,
                **defense_of(cell)._asdict(),
                **asdict(entry.key),
                unit=attack.objective_unit,
                recovered=len(gains) - len(missed),
                missed=len(missed),
                errors=sum(excess > 0 for excess in missed),
                excess=median(missed) if missed else None,
            )


class _Gain(NamedTuple):
    """What the private rows of one update would have won.

    Attributes:
        recovered: whether all of them passed the threshold of the main metric.
        excess: the objective of the guess less that of the private rows.
    """

    recovered: bool
    excess: float


def _gain(
    victims: Victims[Cell], task: Task, attack: Attack, spec: JobSpec, key: CaptureKey
) -> _Gain | None:
    """None without a guess of as many rows, or where the attack does not compare them."""
    stored, truth = read_guess(victims, spec.label, key), _in_order(victims, key)
    if stored.examples is None or len(stored.examples.batch) != len(truth):
        return None
    seen = victims.cell.captures.load(key)
    rng = generator(spec.seed, "attack", key.round, key.client, spec.label)
    job = job_of(spec, seen, torch.device("cpu"), silent)
    objectives = attack.objectives(seen, task, [stored.examples.batch, truth], rng, job)
    if objectives is None:
        return None
    modality, rows = victims.task.modality, victims.task.examples(truth)
    main = METRICS[MAIN[modality]]()
    scores = main.score(matched(stored, rows, modality).aligned, rows)
    recovered = bool((scores >= THRESHOLDS[main.name]).all())
    return _Gain(recovered, objectives[0] - objectives[1])


def _in_order(victims: Victims[Cell], key: CaptureKey) -> Batch:
    """The private rows in the order in which the client first used them."""
    batch = victims.batch(key)
    used = dict.fromkeys(place for step in victims.records[key].steps for place in step)
    return batch[torch.tensor(list(used))] if len(used) == len(batch) else batch


def read_searches(root: Path) -> list[SearchErrors]:
    """Those of a run folder; none where it was scored before they were recorded."""
    path = root / SEARCHES
    return read_rows(path, SearchErrors) if path.exists() else []
