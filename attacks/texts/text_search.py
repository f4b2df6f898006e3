"""The search of a text whose gradient matches: continuous steps, and words put in other orders."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from attacks.base import Job
from attacks.engine.descent import Best
from attacks.texts.frames import Frames, Vocabulary
from attacks.texts.language_prior import LanguagePrior
from attacks.texts.matching import Matching
from attacks.texts.text_options import TextOptions
from fedsim.types import Batch

LANES = 32
"""Guesses that share a pass, which bounds the memory."""
PADDED = 16
"""Most places of padding in a pass on the CPU: beyond that one more pass costs less."""


class Search:
    """The guesses ``(victim, lane, sentence, token, width)`` and the steps that change them."""

    def __init__(
        self,
        matching: Matching,
        vocabulary: Vocabulary,
        frames: Frames,
        options: TextOptions,
        job: Job,
        prior: LanguagePrior | None,
    ) -> None:
        self.frames, self.options = frames, options
        self._matching, self.vocabulary = matching, vocabulary
        self.prior, self.job = prior, job
        self._fixed = vocabulary.table[frames.ids]
        self.guess = torch.zeros_like(self._fixed)
        self.labels = frames.labels
        self.searches_labels = frames.labels.is_floating_point()
        self.best = Best(self.guess.flatten(0, 1), self.labels.flatten(0, 1))
        self.optimizer: torch.optim.Optimizer | None = None
        # Read once: on a GPU each reading waits for all that was asked before.
        self._longest: list[int] = frames.mask.sum(-1).flatten(1).amax(1).tolist()
        _, lanes, sentences = self.guess.shape[:3]
        size = max(1, LANES // lanes)
        on_cpu = self.guess.device.type == "cpu"
        self._passes = passes(self._longest, lanes * sentences, size, on_cpu=on_cpu)

    def reset(self) -> None:
        """Restore the special tokens and discard the best guess so far."""
        self._frame_all()
        self.best = Best(self.guess.flatten(0, 1), self.labels.flatten(0, 1))

    def framed(self, guess: Tensor, victim: int, lane: int) -> Tensor:
        """A guess of one lane with its special tokens and padding in place."""
        free = self.frames.free[victim, lane][..., None]
        return torch.where(free, guess, self._fixed[victim, lane])

    def _frame_all(self) -> None:
        self.guess.copy_(torch.where(self.frames.free[..., None], self.guess, self._fixed))

    # Continuous steps

    def step(self) -> Tensor:
        """Step on all lanes; return the objective before the step, ``(victim, lane)``."""
        assert self.optimizer is not None
        objectives, slopes = zip(*map(self._slope, self._passes), strict=True)
        objective = torch.cat(objectives)
        self.best.offer(objective.flatten(), self.guess.flatten(0, 1), self.labels.flatten(0, 1))
        for variable, parts in zip(self.variables, zip(*slopes, strict=True), strict=True):
            variable.grad = torch.cat(parts)
        self.optimizer.step()
        self._frame_all()
        return objective

    @property
    def variables(self) -> list[Tensor]:
        """The tensors that the optimiser changes."""
        return [self.guess, self.labels] if self.searches_labels else [self.guess]

    def _slope(self, victims: slice) -> tuple[Tensor, list[Tensor]]:
        variables = [part[victims].detach().requires_grad_() for part in self.variables]
        guess, labels = variables[0], (variables[1:] or [self.labels[victims]])[0]
        distance = self._match(victims, guess, labels, self.frames.mask[victims])
        real = self.frames.mask[victims].to(guess)
        norms = (guess.norm(dim=-1) * real).sum((2, 3)) / real.sum((2, 3))
        objective = distance + self.options.alpha_reg * (norms - self.vocabulary.size).square()
        return objective.detach(), list(torch.autograd.grad(objective.sum(), variables))

    # Discrete steps

    def rearrange(self, proposals: int, rngs: Sequence[torch.Generator]) -> None:
        """Try other orders of each sentence and keep the best, along with Adam's moments."""
        for victim, rng in enumerate(rngs):
            for lane in range(self.guess.shape[1]):
                ids = self.nearest(victim, lane)
                for sentence in range(self.guess.shape[2]):
                    if self.job.expired:
                        return
                    places = torch.nonzero(self.frames.free[victim, lane, sentence])[:, 0]
                    if len(places) < 2:
                        continue
                    first, last = int(places[0]), int(places[-1])
                    orders = transforms(first, last, ids.shape[1], proposals, rng).to(ids.device)
                    chosen = self._choose(victim, lane, sentence, orders, ids[sentence])
                    if chosen:
                        self._reorder(victim, lane, sentence, orders[chosen])
                        ids[sentence] = ids[sentence][orders[chosen]]

    def _choose(self, victim: int, lane: int, sentence: int, orders: Tensor, ids: Tensor) -> int:
        """Index of the best order of one sentence."""
        guess = self.guess[victim, lane].repeat(len(orders), 1, 1, 1)
        guess[:, sentence] = self.guess[victim, lane, sentence][orders]
        scores = self.distances(victim, lane, guess)
        if self.prior is not None and self.options.alpha_lm:
            mask = self.frames.mask[victim, lane, sentence].expand_as(orders)
            # The prior's loss is a mean over the sentences, of which only this one changes.
            share = self.options.alpha_lm / guess.shape[1]
            scores = scores + share * self.prior.loss(ids[orders], mask).to(scores)
        return int(scores.nan_to_num(torch.inf).argmin())

    def _reorder(self, victim: int, lane: int, sentence: int, order: Tensor) -> None:
        assert self.optimizer is not None
        tensors = [self.guess]
        tensors += [v for v in self.optimizer.state[self.guess].values() if v.dim()]
        for tensor in tensors:
            tensor[victim, lane, sentence] = tensor[victim, lane, sentence][order]
        # The prior may favour an order with a higher objective: the search goes on from there.
        self.best.objective[victim * self.guess.shape[1] + lane] = torch.inf

    # Ends

    def narrowed(self) -> Search:
        """A search that continues with the best lane of each victim."""
        chosen = self.best.objective.view(self.guess.shape[:2]).argsort(1)[:, :1]
        rows = torch.arange(len(chosen), device=chosen.device)[:, None]
        frames = self.frames
        ids, mask, free = (part[rows, chosen] for part in (frames.ids, frames.mask, frames.free))
        survivors = Frames(ids, mask, free, self.labels[rows, chosen], frames.meaning)
        narrowed = Search(
            self._matching, self.vocabulary, survivors, self.options, self.job, self.prior
        )
        narrowed.guess.copy_(self.guess[rows, chosen])
        return narrowed

    def tokens(self, victim: int) -> tuple[Tensor, Tensor, int, float]:
        """Ids ``(sentence, token)``, labels, lane and distance of the victim's best guess.

        The best and the last guess of each lane are rounded to tokens and compared by gradient and
        prior.
        """
        tried, lanes = list[tuple[float, Tensor, Tensor, int, float]](), self.guess.shape[1]
        best, labels = (part.unflatten(0, (-1, lanes))[victim] for part in self.best.candidate)
        for lane in range(lanes):
            ends = (
                (best[lane], labels[lane]),
                (self.guess[victim, lane], self.labels[victim, lane]),
            )
            for guess, label in ends:
                ids = self._with_frame(self.vocabulary.nearest(guess), victim, lane)
                score, distance = self.score(victim, lane, ids, label)
                lost = float(score.nan_to_num(torch.inf))
                tried.append((lost, ids, label, lane, float(distance)))
        return min(tried, key=lambda end: end[0])[1:]

    def score(
        self, victim: int, lane: int, ids: Tensor, labels: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """What rounded guesses are compared by, and the distance in it, ``(1,)`` each.

        Args:
            victim: number of the victim.
            lane: of it.
            ids: tokens ``(sentence, token)``.
            labels: the lane's own if not given.
        """
        table = self.vocabulary.table
        given = None if labels is None else labels[None]
        distance = self.distances(victim, lane, table[ids][None], given)
        if self.prior is None:
            return distance, distance
        likely = self.prior.loss(ids, self.frames.mask[victim, lane]).mean().to(distance)
        return distance + self.options.alpha_lm * likely, distance

    # Shared

    def lowest(self) -> Tensor:
        """The lowest objective of each victim so far."""
        return self.best.objective.view(self.guess.shape[:2]).amin(1)

    def nearest(self, victim: int, lane: int) -> Tensor:
        """The tokens of a lane's guess, ``(sentence, token)``."""
        ids = self.vocabulary.nearest(self.guess[victim, lane])
        return self._with_frame(ids, victim, lane)

    def _with_frame(self, ids: Tensor, victim: int, lane: int) -> Tensor:
        return ids.where(self.frames.free[victim, lane], self.frames.ids[victim, lane])

    @torch.no_grad()
    def distances(
        self, victim: int, lane: int, guess: Tensor, labels: Tensor | None = None
    ) -> Tensor:
        """Distances of guesses ``(candidate, sentence, token, width)`` of a lane, no graph."""
        labels = self.labels[victim, lane][None] if labels is None else labels
        parts = []
        for part in guess.split(LANES):
            with torch.enable_grad():
                parts.append(self._of_lane(victim, lane, part, labels, False).detach())
        return torch.cat(parts)

    def slope(self, victim: int, lane: int, guess: Tensor, labels: Tensor) -> Tensor:
        """Slope of the distance in the guess ``(sentence, token, width)`` of a lane."""
        guess = guess.detach().requires_grad_()
        (distance,) = self._of_lane(victim, lane, guess[None], labels[None], True)
        return torch.autograd.grad(distance, guess)[0]

    def _of_lane(
        self, victim: int, lane: int, guess: Tensor, labels: Tensor, create_graph: bool
    ) -> Tensor:
        mask, alone = self.frames.mask[victim, lane], slice(victim, victim + 1)
        count = len(guess)
        labels, mask = (part.expand(1, count, *part.shape[1:]) for part in (labels, mask[None]))
        return self._match(alone, guess[None], labels, mask, create_graph)[0]

    def _match(
        self,
        victims: slice,
        guess: Tensor,
        labels: Tensor,
        mask: Tensor,
        create_graph: bool = True,
    ) -> Tensor:
        longest = max(self._longest[victims])
        guess, mask = guess[..., :longest, :], mask[..., :longest]
        flat = mask.flatten(0, 2)
        meant = self.frames.meaning.labels(labels, victims, guess, mask)
        batch = Batch(torch.zeros_like(flat), meant.flatten(0, 2), flat)
        return self._matching(guess, batch, victims, create_graph=create_graph)


def passes(longest: Sequence[int], lines: int, size: int, *, on_cpu: bool) -> list[slice]:
    """Slices of victims in the order of their lengths, of at most ``size`` each.

    A pass is as wide as its longest. On a CPU padding costs as much as words, and a victim of much
    other length starts the next pass.

    Args:
        longest: tokens of the longest sentence of each victim.
        lines: sentences of a victim, in all its lanes.
        size: most victims in a pass.
        on_cpu: whether padding costs time.
    """
    starts = [0]
    for victim in range(len(longest)):
        lengths = longest[starts[-1] : victim + 1]
        padding = (max(lengths) * len(lengths) - sum(lengths)) * lines
        if len(lengths) > size or (on_cpu and padding > PADDED):
            starts.append(victim)
    return [slice(*ends) for ends in pairwise([*starts, len(longest)])]


def transforms(first: int, last: int, total: int, count: int, rng: torch.Generator) -> Tensor:
    """Orders int64 ``(order, total)`` of which no two are alike; the first changes nothing.

    In turn a swap of two words, a word moved, a span moved, and a prefix put at the end, each drawn
    uniformly. LAMP's code draws some that change nothing, and its prefixes may carry the end token
    and padding along.

    Args:
        first: place of the first word; what stands before it stays.
        last: place of the last word; what stands after it stays.
        total: tokens of the padded sentence.
        count: orders drawn; fewer are returned where some are drawn twice.
        rng: where they are drawn from.
    """
    words = list(range(first, last + 1))
    orders: dict[tuple[int, ...], None] = {tuple(words): None}
    if len(words) > 1:
        draws = torch.rand(count - 1, 3, generator=rng).tolist()
        for number, draw in enumerate(draws):
            orders[tuple(_KINDS[number % len(_KINDS)](words, *draw))] = None
    rest = torch.arange(total).repeat(len(orders), 1)
    rest[:, first : last + 1] = torch.tensor(list(orders))
    return rest


def reordered(words: list[int], kind: float, *draws: float) -> list[int]:
    """The words after one of the four moves; ``kind`` and three draws are uniform in [0, 1)."""
    return _KINDS[int(kind * len(_KINDS))](words, *draws)


def _swap(words: list[int], first: float, second: float, _: float) -> list[int]:
    i, j = int(first * len(words)), int(second * len(words))
    swapped = words.copy()
    swapped[i], swapped[j] = swapped[j], swapped[i]
    return swapped


def _move(words: list[int], start: float, goal: float, _: float) -> list[int]:
    i, j = int(start * len(words)), int(goal * len(words))
    rest = words[:i] + words[i + 1 :]
    return [*rest[:j], words[i], *rest[j:]]


def _move_span(words: list[int], first: float, second: float, goal: float) -> list[int]:
    i, j = sorted(int(cut * (len(words) + 1)) for cut in (first, second))
    rest = words[:i] + words[j:]
    k = int(goal * (len(rest) + 1))
    return [*rest[:k], *words[i:j], *rest[k:]]


def _turn(words: list[int], cut: float, *_: float) -> list[int]:
    i = int(cut * len(words))
    return words[i:] + words[:i]


_KINDS = (_swap, _move, _move_span, _turn)
