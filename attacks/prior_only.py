"""The null baseline: a guess made without looking at the update."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from attacks.base import Attack, Job, Reconstruction
from fedsim.capture import Observation
from fedsim.tasks.base import Task
from fedsim.tasks.masked_language_modelling import unmasked
from fedsim.types import Batch


@dataclass(frozen=True)
class PriorOnly(Attack):
    """Guess from the auxiliary rows alone, without the update: the null baseline.

    An attack leaks only what it finds beyond this guess. For images it is the mean auxiliary image,
    or grey 0.5 without auxiliary rows. For texts it is the most frequent auxiliary token at each
    position, as long as the granted length or else the median auxiliary row; without rows it is an
    empty sentence. Labels are the granted ones, else the most frequent auxiliary class, else -1.
    """

    def abridged(self) -> tuple[Attack, float]:
        """The whole attack, which takes no steps."""
        return self, 0.0

    def guess(
        self, observation: Observation, task: Task, rng: torch.Generator, job: Job
    ) -> Reconstruction:
        """The same guess for every example."""
        del rng
        return Reconstruction(_guess(observation, task, job))


def _guess(observation: Observation, task: Task, job: Job) -> Batch:
    knowledge = observation.knowledge
    count = knowledge.num_examples or 1
    rows = unmasked(job.auxiliary()) if knowledge.auxiliary else None
    if knowledge.labels is not None:
        labels = torch.tensor(knowledge.labels)
    else:
        classes = rows is not None and task.spec.num_classes > 0
        usual = int(rows.labels.mode().values) if rows is not None and classes else -1
        labels = torch.full((count,), usual)
    if task.modality == "image":
        image = torch.full(task.spec.input_shape, 0.5) if rows is None else rows.inputs.mean(0)
        return Batch(image.repeat(count, 1, 1, 1), labels)
    if rows is None:
        return Batch(torch.zeros(count, 0).long(), labels, torch.zeros(count, 0).long())
    assert rows.mask is not None
    lengths = knowledge.lengths or (int(rows.mask.sum(1).median()),) * count
    tokens = _usual_tokens(rows, max(lengths))
    mask = (torch.arange(len(tokens)) < torch.tensor(lengths)[:, None]).long()
    return Batch(tokens * mask, labels, mask)


def _usual_tokens(rows: Batch, length: int) -> Tensor:
    """The most frequent token at each position that any row reaches, ``(at most length,)``."""
    assert rows.mask is not None
    positions = range(min(length, int(rows.mask.sum(1).max())))
    return torch.stack([rows.inputs[rows.mask[:, p] == 1, p].mode().values for p in positions])
