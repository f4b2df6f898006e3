"""What a server guesses that does not look at the update."""

from __future__ import annotations

import torch
from torch import Tensor

from attacks.base import Job
from fedsim.capture import Observation
from fedsim.tasks.base import Task
from fedsim.tasks.masked_language_modelling import unmasked
from fedsim.types import Batch


def prior_guess(observation: Observation, task: Task, job: Job) -> Batch:
    """The guess of a batch from the auxiliary rows and the granted knowledge, see ``PriorOnly``."""
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
