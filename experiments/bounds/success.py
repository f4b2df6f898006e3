"""What differential privacy leaves of the chance to guess a private example right."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from fedsim.accountant import Schedule
from fedsim.cell import CellConfig
from fedsim.defenses import build_chain
from fedsim.defenses.dp_client import DpClient
from fedsim.defenses.dp_sgd import DpSgd
from fedsim.reconstruction_bound import success_bound
from fedsim.tasks.base import Task
from fedsim.tasks.text import TextTask
from fedsim.types import Rows

_ROWS = 2000  # rows whose tokens are counted


@dataclass(frozen=True, slots=True)
class Mechanism:
    """Noisy sums of which differential privacy is claimed.

    Attributes:
        unit: what is hidden: an example, or all of a client's update.
        noise: standard deviation in units of what one such unit can change.
        rate: chance of a row to be in a sum.
        steps: sums in one round.
        rounds: in which the client takes part.
    """

    unit: str
    noise: float
    rate: float
    steps: int
    rounds: int

    def bound(self, chance: float, rounds: int) -> float:
        """The largest chance to be right with the replies of so many rounds."""
        steps = rounds * self.steps
        return success_bound(chance, steps=steps, rate=self.rate, noise_multiplier=self.noise)


def mechanism(config: CellConfig, rows: int) -> Mechanism | None:
    """What the defense of a client with so many rows claims; None where it claims nothing.

    Of a chain the first defense with a claim counts, since what follows costs nothing.
    """
    schedule = Schedule.of(config.federation, rows)
    for defense in build_chain(config.defense, "defense").fit(schedule).defenses:
        if isinstance(defense, DpSgd) and defense.noise_multiplier is not None:
            steps = schedule.steps // schedule.rounds
            noise = defense.noise_multiplier
            return Mechanism("example", noise, schedule.rate, steps, schedule.rounds)
        if isinstance(defense, DpClient) and defense.noise_multiplier is not None:
            reach = 2 if defense.adjacency == "replace" else 1
            noise = defense.noise_multiplier / reach
            return Mechanism("update", noise, 1.0, 1, schedule.rounds)
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
