"""Whether an attack missed what an update tells, or the update does not tell it.

An attack chooses between guesses by a number. Where the private rows have a better one than the
guess, a search of more guesses would have come nearer: a search error, as decoders of translation
have them (Stahlberg and Byrne 2019, arXiv:1908.10090). Where the guess has the better one, no
search by this number returns the private rows, and only an attack that reads the update otherwise
can.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from statistics import median
from typing import Any, NamedTuple

import torch

from attacks import attack_classes
from attacks.base import Attack
from attacks.scheduling.jobs import JobSpec
from attacks.scheduling.prepared import job_of
from attacks.scheduling.worker import silent
from experiments.bounds.records import SearchErrors
from experiments.plan.cells import Cell
from experiments.plan.entries import entries
from experiments.stages.attack import jobs
from experiments.stages.coverage import THRESHOLDS
from fedsim.api.guesses import matched, read_guess
from fedsim.api.victims import Victims
from fedsim.build import build
from fedsim.capture import CaptureKey
from fedsim.metrics import METRICS
from fedsim.records import MAIN
from fedsim.seeds import generator
from fedsim.tasks import load_task
from fedsim.tasks.base import Task
from fedsim.threads import one_thread
from fedsim.types import Batch


def search_errors(cell: Cell, who: Mapping[str, Any]) -> Iterator[SearchErrors]:
    """One record for each attack of a cell that names its objective and made a guess.

    Args:
        cell: simulated, and attacked as far as it is.
        who: the columns that all limits of the cell share.
    """
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
            asked = [_gain(victims, task, attack, spec, key) for spec in specs for key in spec.keys]
        gains = [gain for gain in asked if gain is not None]
        missed = [gain.excess for gain in gains if not gain.recovered]
        if gains:
            yield SearchErrors(
                **who,
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
