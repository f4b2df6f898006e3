"""An attack: a frozen dataclass whose fields are its options; written 2026."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from fedsim.errors import CannotAttack
from fedsim.knowledge import Fact
from fedsim.models.embeddings import embedding_names
from fedsim.plugins import Attack, Job, Observation, Reconstruction, batch_of
from fedsim.tasks.base import Task


@dataclass(frozen=True)
class LargestRows(Attack):
    """The words with the largest rows in the gradient of their embeddings, in no order (2026)."""

    title: ClassVar[str] = "largest rows"
    modalities: ClassVar[frozenset[Literal["image", "text"]]] = frozenset({"text"})
    requires: ClassVar[frozenset[Fact]] = frozenset({"num_examples"})
    words: int = 16

    def guess(
        self, observation: Observation, task: Task, rng: torch.Generator, job: Job
    ) -> Reconstruction:
        """As many texts as the batch has examples, of at most ``words`` each."""
        count = observation.knowledge.num_examples or 1
        table = embedding_names(task.model(observation.sent)).word
        if table is None or table not in observation.received:
            raise CannotAttack("the word embeddings are not sent", "Choose another attack.")
        rows = observation.update((table,))[table].norm(dim=1)
        rows[list(task.spec.special_ids)] = 0
        largest, words = rows.topk(min(count * self.words, len(rows)))
        ids = words[largest > 0].tolist()
        lines = [ids[turn::count] for turn in range(count)]
        return Reconstruction(batch_of(lines, task, [-1] * count))
