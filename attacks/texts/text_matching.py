"""The search of DLG, TAG and LAMP for a text whose gradient matches the observed one."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from attacks.base import Attack, Job, Reconstruction
from attacks.engine.descent import Best, SearchProgress
from attacks.texts.frames import ordered
from attacks.texts.language_prior import load_prior
from attacks.texts.substitutions import substituted
from attacks.texts.text_group import Hypothesis, TextGroup, hypotheses
from attacks.texts.text_options import TextOptions
from attacks.texts.text_search import LANES, Search
from fedsim.errors import CannotAttack
from fedsim.store.capture import Observation
from fedsim.tasks.base import Task
from fedsim.tasks.text import TextTask
from fedsim.types import Batch

_DECAY = 0.89  # of LAMP's rate, as in the authors' code
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
            hypotheses(seen, task, network, rng, job)
            for seen, rng in zip(observations, rngs, strict=True)
        ]
        alike: defaultdict[tuple[object, ...], list[int]] = defaultdict(list)
        for index, (seen, guessed) in enumerate(zip(observations, possible, strict=True)):
            facts = seen.knowledge
            key = (facts.num_examples, facts.train_mode, repr(facts.defense), len(guessed))
            alike[*key, *seen.received].append(index)
        guesses: dict[int, Reconstruction] = {}
        for members in alike.values():
            members.sort(
                key=lambda index: max(n for guessed in possible[index] for n in guessed.lengths)
            )
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

    def objectives(
        self,
        observation: Observation,
        task: Task,
        batches: Sequence[Batch],
        rng: torch.Generator,
        job: Job,
    ) -> list[float] | None:
        """The distance of gradients, with the prior's loss if there is one, of rounded texts.

        None where targets are searched for beside the texts.
        """
        assert isinstance(task, TextTask)
        known = task.spec.kind in ("text-classification", "language-modelling")
        if task.spec.target != "class" or not known:
            return None
        prior = load_prior(self.prior, task, job.device) if self.prior else None
        scores = []
        for batch in batches:
            assert batch.mask is not None
            lengths = tuple(batch.mask.sum(1).tolist())
            classes = tuple(batch.labels.tolist()) if task.spec.num_classes else None
            possible = [[Hypothesis(lengths, classes)]]
            group = TextGroup(self, [observation], possible, task, prior, [rng], job)
            ids = batch.inputs[:, : max(lengths)].to(job.device)
            scores.append(float(group.search().score(0, 0, ids)[0]))
        return scores

    def _together(self, group: TextGroup) -> list[Reconstruction]:
        """One guess a victim."""
        search, progress, job = group.search(), SearchProgress(group.job), group.job
        start(search, self.starts, group.rngs, rescale=self.refined)
        search.optimizer = torch.optim.Adam(search.variables)
        step, note = 0, ""
        for step in range(1, self.steps + 1):
            if job.expired:
                step -= 1
                break
            for parameters in search.optimizer.param_groups:
                parameters["lr"] = self._rate(step - 1)
            objective = search.step()
            if not bool(objective.isfinite().any()):
                note = f"the search diverged at step {step}; lower learning_rate"
                break
            if step == max(1, self._burn_in) and search.guess.shape[1] > 1:
                search = search.narrowed()
                search.optimizer = torch.optim.Adam(search.variables)
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
        decays = step // self.decay_every if self.refined else 0
        return float(self.learning_rate * _DECAY**decays)


def start(search: Search, draws: int, rngs: Sequence[torch.Generator], *, rescale: bool) -> None:
    """The best of random embeddings, then of orders of its words; norms as the vocabulary's."""
    sentences, tokens, width = search.guess.shape[2:]
    for victim, rng in enumerate(rngs):
        # Nothing is drawn for padding, which depends on the victims that share the group.
        longest = int(search.frames.mask[victim].sum(-1).max())
        for lane in range(search.guess.shape[1]):
            best = Best(search.guess[victim, lane][None])
            for count in _portions(search, draws):
                drawn = torch.randn(count, sentences, longest, width, generator=rng)
                drawn = pad(drawn, (0, 0, 0, tokens - longest)).to(search.guess)
                drawn = search.framed(drawn, victim, lane)
                _offer(best, search.distances(victim, lane, drawn), drawn)
            for count in _portions(search, draws if draws > 1 else 0):
                orders = _shuffles(search.frames.free[victim, lane].cpu(), count, rng)
                drawn = ordered(best.candidate[0][0], orders.to(search.guess.device))
                _offer(best, search.distances(victim, lane, drawn), drawn)
            search.guess[victim, lane] = best.candidate[0][0]
        if rescale:
            norms = search.guess[victim].norm(dim=-1, keepdim=True).clamp(min=1e-12)
            search.guess[victim] *= search.vocabulary.size / norms
    search.reset()


def _offer(best: Best, scores: Tensor, candidates: Tensor) -> None:
    nearest = scores.nan_to_num(torch.inf).argmin()
    best.offer(scores[nearest][None], candidates[nearest][None])


def _portions(search: Search, total: int) -> Iterator[int]:
    """``total`` in parts that fit into a pass; the first alone when the time is over."""
    for done in range(0, total, LANES):
        if done and search.job.expired:
            return
        yield min(LANES, total - done)


def _shuffles(free: Tensor, count: int, rng: torch.Generator) -> Tensor:
    """Random orders of the words of each sentence, ``(count, sentence, token)``.

    ``free (sentence, token)`` says where words are.
    """
    orders = torch.arange(free.shape[1]).repeat(count, len(free), 1)
    for sentence, words in enumerate(free):
        places = torch.nonzero(words)[:, 0]
        for row in orders[:, sentence]:
            row[places] = places[torch.randperm(len(places), generator=rng)]
    return orders
