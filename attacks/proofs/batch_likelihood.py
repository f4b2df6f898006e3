"""How likely a batch of texts is, given an update: what searches of texts approximate."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from attacks.base import Job
from attacks.proofs.gradient_match import GradientMatcher
from attacks.tokens.soft_traces import are_signs
from fedsim.store.capture import Observation
from fedsim.tasks.text import TextTask
from fedsim.types import Batch

_ROUNDING = 1e-12
"""Share of an update's square below which float32 tells nothing. Half or twice of it moves the
likelihood of exact fits by .35 nats an entry, of a guess and of the truth alike."""


@dataclass(frozen=True)
class BatchLikelihood:
    """``-log p(texts | update)`` up to a constant, in nats.

    What a batch's gradient leaves of the update is taken for white noise of unknown size: N entries
    that were sent, of which a share r of the square is not explained, cost ``N / 2 log r`` (a
    profile likelihood); each text of a classifier has its own scale. Entries that were not sent do
    not count, and the tensors of signs are normalised first, as they have lost their size. Naming
    the texts costs ``-log p(text)``: by the model itself if it writes texts, else by the
    frequencies of words in the public rows, or evenly.

    Attributes:
        match: compares gradients with the update.
        words: nats that naming each word costs ``(token,)``; None if the model tells.
    """

    match: GradientMatcher
    words: Tensor | None

    @classmethod
    def of(cls, observation: Observation, task: TextTask, job: Job) -> BatchLikelihood | None:
        """None where the loss of guessed texts takes more than classes or their own words.

        Raises:
            CannotAttack: a gradient does not stand for the client's training.
        """
        if task.spec.target != "class":
            return None
        if task.spec.kind not in ("text-classification", "language-modelling"):
            return None
        match = GradientMatcher.of(observation, task, job.device, signs=are_signs(observation))
        if task.spec.kind == "language-modelling":
            return cls(match, None)
        public = job.auxiliary() if observation.knowledge.auxiliary else None
        return cls(match, _word_nats(public, len(match.table)).to(job.device))

    def nats(self, batch: Batch) -> float:
        """Of texts in any padding; classes that are not known, -1, are those that fit best."""
        batch = self.match.classified(batch)
        share = max(self.match.unexplained(batch), _ROUNDING)
        return self.match.entries / 2 * math.log(share) + self._naming(batch)

    @torch.no_grad()
    def _naming(self, batch: Batch) -> float:
        assert batch.mask is not None
        if self.words is not None:
            return float(self.words[batch.inputs[batch.mask == 1]].sum())
        predicted = (batch.mask[:, 1:] * batch.mask[:, :-1]).sum()
        loss = self.match.model.task.loss(self.match.model.network, batch)
        return float(loss * predicted) if predicted else 0.0


def _word_nats(public: Batch | None, size: int) -> Tensor:
    """``-log p`` of each word ``(token,)``, each counted once more than it occurs."""
    counts = torch.ones(size)
    if public is not None and public.mask is not None:
        counts += torch.bincount(public.inputs[public.mask == 1], minlength=size)
    return counts.sum().log() - counts.log()
