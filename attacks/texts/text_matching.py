"""The search of DLG, TAG and LAMP for a text whose gradient matches the observed one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from attacks.base import Attack, Job, Reconstruction
from attacks.observed.search import SearchProgress
from attacks.texts.hypotheses import hypotheses
from attacks.texts.language_prior import load_prior
from attacks.texts.starts import start
from attacks.texts.substitutions import substituted
from attacks.texts.text_group import TextGroup
from attacks.texts.text_options import TextOptions
from attacks.texts.text_search import Search
from fedsim.capture import Observation
from fedsim.errors import CannotAttack
from fedsim.tasks.base import Task
from fedsim.tasks.text import TextTask
from fedsim.types import Batch

NOTED = 25
"""Steps between two entries of the trace."""


@dataclass(frozen=True)
class TextMatching(TextOptions):
    """Search for word embeddings, and for their order, by the distance between gradients.

    The embeddings of all sentences in a batch are searched together, at the output of the word
    table, so that positions and norms remain the model's own. Start, end and padding are fixed by
    the lengths, and the true mask is passed. Two gradients are not compared: that of the word
    table, in which a guess that is not a token has no row, and those that vanish for analytical
    reasons, whose cosine is mere rounding. Victims of one broadcast model share their passes. The
    last and the best iterate are rounded to tokens, and the better of the two is the guess.
    """

    def abridged(self) -> tuple[Attack, float]:
        """With one start and no substitutions; a start, an order or one takes a third of a step."""
        rounds = sum(map(self._due, range(1, self.steps + 1))) if self.discrete != "none" else 0
        tried = self.starts + rounds * self.proposals + self.substitutions
        return replace(self, starts=1, substitutions=0), self.steps + tried / 3

    def reconstruct(
        self,
        observations: Sequence[Observation],
        task: Task,
        rngs: Sequence[torch.Generator],
        job: Job,
    ) -> list[Reconstruction]:
        """One guess for each observation; those of equal shape share their passes."""
        assert isinstance(task, TextTask)
        if task.spec.target != "class":
            raise CannotAttack(
                f"the head of {task.spec.model!r} learns {task.spec.target}, and this search needs "
                "the loss of one class",
                "Choose 'span' or 'embedding_rows'.",
            )
        prior = load_prior(self.prior, task, job.device) if self.prior else None
        network = task.build()
        possible = [
            hypotheses(seen, task, network, self.labels, self.hypotheses, rng, job)
            for seen, rng in zip(observations, rngs, strict=True)
        ]
        alike: defaultdict[tuple[object, ...], list[int]] = defaultdict(list)
        for index, (seen, own) in enumerate(zip(observations, possible, strict=True)):
            facts = seen.knowledge
            key = (facts.num_examples, facts.train_mode, repr(facts.defense), len(own))
            alike[*key, *seen.received].append(index)
        guesses: dict[int, Reconstruction] = {}
        for members in alike.values():
            members.sort(key=lambda index: max(n for own in possible[index] for n in own.lengths))
            group = TextGroup(
                self,
                [observations[i] for i in members],
                [possible[i] for i in members],
                task,
                prior,
                [rngs[i] for i in members],
                job,
            )
            guesses |= zip(members, self._together(group), strict=True)
        return [guesses[index] for index in range(len(observations))]

    def _together(self, group: TextGroup) -> list[Reconstruction]:
        """One guess a victim."""
        search, progress, job = group.search(), SearchProgress(group.job), group.job
        start(search, self.starts, group.rngs, rescale=self.rescale)
        search.optimizer = self._optimizer(search)
        step, note = 0, ""
        for step in range(1, self.steps + 1):
            if job.expired:
                step -= 1
                break
            for parameters in search.optimizer.param_groups:
                parameters["lr"] = self._rate(step - 1)
            objective = search.step(self.clip)
            if not bool(objective.isfinite().any()):
                note = f"the search diverged at step {step}; lower learning_rate"
                break
            if step == max(1, self._burn_in) and search.guess.shape[1] > self.restarts:
                search = search.narrowed(self.restarts)
                search.optimizer = self._optimizer(search)
            if self.discrete == "alternate" and self._due(step):
                search.rearrange(self.proposals, group.rngs)
            if step % NOTED == 0 or step == self.steps:
                # The first sentence of the first victim, for somebody who watches.
                ids = search.nearest(0, 0)[0][search.frames.free[0, 0, 0]]
                progress.note(step, search.lowest(), group.task.text(ids.tolist()))
        if self.discrete == "end":
            for _ in filter(self._due, range(1, self.steps + 1)):
                search.rearrange(self.proposals, group.rngs)
        diverged = bool(note)
        if group.prior is None and self.alpha_lm and not note:
            note = "without a language prior; name one as prior, or train one with fedsim prior"
        return [
            self._result(search, victim, rng, step, diverged, note, progress)
            for victim, rng in enumerate(group.rngs)
        ]

    def _result(
        self,
        search: Search,
        victim: int,
        rng: torch.Generator,
        step: int,
        diverged: bool,
        note: str,
        progress: SearchProgress,
    ) -> Reconstruction:
        ids, labels, lane, distance = search.tokens(victim)
        if self.substitutions:
            ids, distance = substituted(
                search, victim, lane, ids, labels, distance, tries=self.substitutions, rng=rng
            )
        mask = search.frames.mask[victim, lane]
        return Reconstruction(
            Batch(ids, search.frames.meaning.settled(labels, victim, ids, mask), mask),
            objective=distance,
            steps=step,
            trace=progress.trace(victim),
            expired=search.job.expired and not diverged,
            note=note,
        )

    @property
    def _burn_in(self) -> int:
        return self.steps // 10

    def _due(self, step: int) -> bool:
        """Whether other orders are tried after this step."""
        every = self.discrete_every
        return step > self._burn_in and step % every == 1 % every

    def _rate(self, step: int) -> float:
        if self.decay == "step":
            return self.learning_rate * 0.89 ** (step // self.decay_every)
        if self.decay == "linear":
            return self.learning_rate * max(0.0, 1 - step / self.decay_every)
        return self.learning_rate

    def _optimizer(self, search: Search) -> torch.optim.Optimizer:
        if self.optimizer == "adamw":
            return torch.optim.AdamW(search.variables, eps=1e-6, weight_decay=0.01)
        return torch.optim.Adam(search.variables)
