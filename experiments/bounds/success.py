"""Bounds from differential privacy on the probability of guessing a private example."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from experiments.bounds.reconstruction_bound import success_bound
from fedsim.accountant import Schedule, Turn
from fedsim.cell import CellConfig
from fedsim.defenses import build_chain
from fedsim.tasks.base import Task
from fedsim.tasks.text import TextTask
from fedsim.types import Rows

_ROWS = 2000  # number of rows whose tokens are counted


@dataclass(frozen=True, slots=True)
class Mechanism:
    """Noisy sums for which a defense claims differential privacy.

    Attributes:
        unit: the unit that privacy protects: ``example``, or a client's whole ``update``.
        noise: standard deviation divided by the sensitivity of one sum to one unit.
        turn: use of a unit within one round.
        rounds: number of rounds in which the client takes part.
    """

    unit: str
    noise: float
    turn: Turn
    rounds: int

    def bound(self, chance: float, rounds: int) -> float:
        """Upper bound on guessing a captured example right from the replies of ``rounds`` rounds.

        The example was certainly used in the captured round, and in every other round with the
        sampling probability of any row.
        """
        noise = self.noise / math.sqrt(self.turn.visits)
        return success_bound(
            chance, sure=1, steps=rounds - 1, rate=self.turn.chance, noise_multiplier=noise
        )


def mechanism(config: CellConfig, rows: int) -> Mechanism | None:
    """The privacy claim of the defense for a client with ``rows`` rows; None if it makes no claim.

    In a chain, the first defense with a claim counts: later ones are post-processing.
    """
    schedule = Schedule.of(config.federation, rows)
    for defense in build_chain(config.defense, "defense").fit(schedule).defenses:
        gaussian = defense.gaussian
        if defense.unit is None or gaussian is None or gaussian.std is None:
            continue
        turn = Turn.of(config.federation, rows) if defense.unit == "example" else Turn(1.0, 1)
        noise = gaussian.std / (gaussian.clip * gaussian.reach)
        return Mechanism(defense.unit, noise, turn, schedule.rounds)
    return None


def guesses(task: Task, private: Rows) -> Iterator[tuple[str, float]]:
    """Secrets of one example, with the probability of guessing each without any update."""
    if task.spec.num_classes:
        counts = torch.bincount(private.labels, minlength=task.spec.num_classes)
        yield "class, the most common", float(counts.max()) / len(private)
    if isinstance(task, TextTask):
        batch = task.encode(private.take(range(min(len(private), _ROWS))))
        assert batch.mask is not None
        special = torch.tensor(task.spec.special_ids, dtype=torch.int64)
        words = batch.inputs[(batch.mask == 1) & ~torch.isin(batch.inputs, special)]
        yield "token at a place, the most common", float(words.bincount().max()) / len(words)
        size = len(task.tokenizer)
        yield f"token at a place, any of {size:,}", 1 / size
    yield f"which of the {len(private):,} rows", 1 / len(private)
