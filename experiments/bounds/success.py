"""What differential privacy leaves of the chance to guess a private example right."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from experiments.bounds.reconstruction_bound import success_bound
from fedsim.accountant import Schedule, Turn
from fedsim.cell import CellConfig
from fedsim.defenses import build_chain
from fedsim.defenses.dp_client import DpClient
from fedsim.defenses.dp_sgd import DpSgd
from fedsim.tasks.base import Task
from fedsim.tasks.text import TextTask
from fedsim.types import Rows

_ROWS = 2000  # rows whose tokens are counted


@dataclass(frozen=True, slots=True)
class Mechanism:
    """Noisy sums of which differential privacy is claimed.

    Attributes:
        unit: what is hidden: an example, or all of a client's update.
        noise: standard deviation in units of what one such unit can change in one sum.
        turn: how often a unit is used in one round.
        rounds: in which the client takes part.
    """

    unit: str
    noise: float
    turn: Turn
    rounds: int

    def bound(self, chance: float, rounds: int) -> float:
        """The largest chance to be right about a captured example, with so many rounds' replies.

        It was used in the captured round, and in each other one with the chance of any row.
        """
        noise = self.noise / math.sqrt(self.turn.visits)
        return success_bound(
            chance, sure=1, steps=rounds - 1, rate=self.turn.chance, noise_multiplier=noise
        )


def mechanism(config: CellConfig, rows: int) -> Mechanism | None:
    """What the defense of a client with so many rows claims; None where it claims nothing.

    Of a chain the first defense with a claim counts, since what follows costs nothing.
    """
    schedule = Schedule.of(config.federation, rows)
    for defense in build_chain(config.defense, "defense").fit(schedule).defenses:
        if isinstance(defense, DpSgd) and defense.noise_multiplier is not None:
            turn = Turn.of(config.federation, rows)
            return Mechanism("example", defense.noise_multiplier, turn, schedule.rounds)
        if isinstance(defense, DpClient) and defense.noise_multiplier is not None:
            reach = 2 if defense.adjacency == "replace" else 1
            noise = defense.noise_multiplier / reach
            return Mechanism("update", noise, Turn(1.0, 1), schedule.rounds)
    return None


def guesses(task: Task, private: Rows) -> Iterator[tuple[str, float]]:
    """What there is to guess of one example, and the chance to be right without any update."""
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
