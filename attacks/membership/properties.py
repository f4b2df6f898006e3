"""What a client's rows have in common, without any of the rows: their classes and their words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from attacks.base import Attack, Grouping, Inferred, Job, Reconstruction
from attacks.observed.known_labels import known_labels
from attacks.tokens.attacked_model import AttackedModel
from attacks.tokens.soft_traces import soft_traces
from attacks.tokens.word_posterior import posterior
from fedsim.capture import Observation
from fedsim.errors import CannotAttack
from fedsim.tasks.base import Task
from fedsim.tasks.text import TextTask
from fedsim.types import Batch


@dataclass(frozen=True)
class Properties(Attack):
    """Infer a property of all rows that a client has used so far, round by round.

    - ``classes``: the share of each class, from the counts that the gradient of the last layer's
      bias gives away in each round (Geng et al. 2021);
    - ``words``: the probability that the client holds a word, ``1 - prod (1 - p)`` over the rounds
      of the probabilities that the soft span of the first layer gives to each word.
    """

    grouping: ClassVar[Grouping] = "same_client"
    infers: ClassVar[Inferred] = "properties"

    of: Literal["classes", "words"] = "classes"

    def reconstruct(
        self,
        observations: Sequence[Observation],
        task: Task,
        rngs: Sequence[torch.Generator],
        job: Job,
    ) -> list[Reconstruction]:
        """The shares ``(class,)`` or probabilities ``(token,)`` after each round."""
        order = sorted(range(len(observations)), key=lambda i: observations[i].key)
        by_round = [(observations[i], rngs[i]) for i in order]
        so_far = _classes(by_round, task, job) if self.of == "classes" else _words(by_round, task)
        nothing = Batch(torch.zeros(0, 1), torch.zeros(0, dtype=torch.int64))
        guesses = {i: Reconstruction(nothing, scores=s) for i, s in zip(order, so_far, strict=True)}
        return [guesses[i] for i in range(len(observations))]


def _classes(
    by_round: Sequence[tuple[Observation, torch.Generator]], task: Task, job: Job
) -> Iterator[Tensor]:
    if not task.spec.num_classes:
        raise CannotAttack("the task has no classes", 'Set of = "words".')
    total = torch.zeros(task.spec.num_classes, dtype=torch.float64)
    for seen, rng in by_round:
        labels = known_labels(seen, task, rng, job)
        total = total + torch.bincount(labels, minlength=len(total))
        yield total / total.sum()


def _words(by_round: Sequence[tuple[Observation, torch.Generator]], task: Task) -> Iterator[Tensor]:
    if not isinstance(task, TextTask):
        raise CannotAttack("images have no words", 'Set of = "classes".')
    missing: Tensor | float = 1.0
    for seen, _ in by_round:
        traces = soft_traces(AttackedModel.of(seen, task), rows=True)
        if traces.first is None:
            raise CannotAttack(
                "the gradient of the first layer, which shows the words, is not sent or is zero",
                "Freeze fewer layers.",
            )
        count = seen.knowledge.num_examples or 1
        held = torch.zeros(traces.statistics.shape[1], dtype=torch.float64)
        held[traces.words] = posterior(traces.statistics[:, traces.words], count).double()
        missing = missing * (1 - held.clamp(0, 1))
        yield 1 - missing
