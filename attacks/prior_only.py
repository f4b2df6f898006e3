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
    """What the auxiliary rows alone say: what leaks is what an attack finds beyond this.

    Images: the mean auxiliary image, or grey 0.5. Text: at each position the most frequent
    auxiliary token there, as long as granted or else as the median auxiliary row; or an empty
    sentence. Labels: the granted ones, or else the most frequent auxiliary class; -1 where there is
    neither.
    """

    def abridged(self) -> tuple[Attack, float]:
        """All of it; there is no step."""
        return self, 0.0

    def guess(
        self, observation: Observation, task: Task, rng: torch.Generator, job: Job
    ) -> Reconstruction:
        """The same guess for each example."""
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
    """The most frequent token of each position that some row has, ``(at most length,)``."""
    assert rows.mask is not None
    positions = range(min(length, int(rows.mask.sum(1).max())))
    return torch.stack([rows.inputs[rows.mask[:, p] == 1, p].mode().values for p in positions])
