"""Exchange of words, their order and their number until a batch's gradient is nearest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from attacks.base import Job
from attacks.proofs.gradient_match import GradientMatcher
from attacks.proofs.line_gradients import Beside
from attacks.span.encoder.proposals import Proposals, Sources
from attacks.tokens.word_clusters import WordClusters
from fedsim.types import Tensors

_LENGTHS = 6  # likeliest lengths, in which words are chosen together
_FEW = 2  # lengths tried again, and words put in at each place
_RIVALS = 4  # words tried at each place
_ROUNDS = 6  # most rounds of changes
_ROUNDING = 1e-5  # relative error of a similarity in float32


@dataclass(frozen=True)
class WordGuess:
    """Sentences of a batch with their classes.

    Attributes:
        lines: ``(token,)`` each.
        labels: their classes.
        score: similarity of the batch's gradient with the update.
    """

    lines: tuple[Tensor, ...] = ()
    labels: tuple[int, ...] = ()
    score: float = -torch.inf

    def with_line(self, row: int, line: Tensor, label: int | None = None) -> WordGuess:
        """The guess with another line; its class stays unless another one is given."""
        chosen = self.labels[row] if label is None else label
        lines = (*self.lines[:row], line, *self.lines[row + 1 :])
        return WordGuess(lines, (*self.labels[:row], chosen, *self.labels[row + 1 :]))


@dataclass(frozen=True)
class WordSearch:
    """An ascent on the similarity of the whole model's gradient with the update.

    Attributes:
        sources: what an update without other sentences proposes.
        whole: what the update proposes.
        clusters: which words share a sentence, if they show.
        match: measures.
        classes: number of classes.
        possible: lengths that may occur.
        dropout: whether dropout blurs the deeper layers, so that the first one alone knows words.
    """

    sources: Sources
    whole: Proposals
    clusters: WordClusters | None
    match: GradientMatcher
    classes: int
    possible: Sequence[int]
    dropout: bool

    def chosen(self, lines: Sequence[Tensor], count: int, names: Sequence[str]) -> WordGuess:
        """So many of some sentences, with classes, whose summed gradient is nearest by the cosine.

        Inner products of a few tensors serve all choices: each sentence is exchanged while that
        brings the sum nearer, from every first one.
        """
        pairs = [(line, label) for line in lines for label in range(self.classes)]
        if len(lines) < count:
            return WordGuess()
        gradients = [self.match.gradient(line, label) for line, label in pairs]
        rows = torch.stack([_flat(gradient, names) for gradient in gradients]).double()
        gram, along = rows @ rows.T, rows @ _flat(self.match.update, names).double()
        best, nearest = list[int](), -torch.inf
        for first in range(len(pairs)):
            batch, cosine = exchanged([first] * count, gram, along)
            if cosine > nearest:
                best, nearest = batch, cosine
        labels = tuple(pairs[index][1] for index in best)
        return WordGuess(tuple(pairs[index][0] for index in best), labels)

    def run(self, count: int, job: Job, begun: WordGuess) -> WordGuess:
        """The nearest batch of this many sentences, improved from ``begun`` if that has any."""
        if count == 1:
            tried = [
                self._best(WordGuess(), near, [0]) for near in self._begun(WordGuess(), 0, 1, job)
            ]
            tried.sort(key=lambda guess: -guess.score)
            # The length is the least certain, and the rest follows from it.
            ends = [self._improved(guess, job) for guess in tried[:_FEW]]
            return self._classified(max(ends, key=lambda guess: guess.score))
        guess = self._best(WordGuess(), [begun] if begun.lines else [], range(count))
        for row in range(len(guess.lines), count):
            near = [start for part in self._begun(guess, row, count, job) for start in part]
            guess = self._best(WordGuess(), near, [row])
        return self._classified(self._improved(guess, job))

    def _classified(self, guess: WordGuess) -> WordGuess:
        """With the classes at which every sentence is a positive part of the update."""
        fixed = replace(self, match=self.match.positive())
        best = replace(guess, score=-torch.inf)
        for row, line in enumerate(guess.lines):
            ways = [best.with_line(row, line, label) for label in range(self.classes)]
            best = fixed._best(best, ways, [row])
        return replace(best, score=guess.score)

    def _begun(self, guess: WordGuess, row: int, count: int, job: Job) -> list[list[WordGuess]]:
        """The guess with a sentence chosen anew beside the others, of each length and class."""
        others = [*guess.lines[:row], *guess.lines[row + 1 :]]
        begun = row < len(guess.lines)
        residual = self._residual(guess, row)
        whole, few = self.whole.beside(others), _FEW if begun else _LENGTHS
        ways = [(way, way.places.lengths(self.possible, few)) for way in (whole, residual) if way]
        if count > 1 and not row:
            likely = whole.places.lengths(self.possible, _FEW)
            ways += [(whole.within(part), likely) for part in self.whole.parts]
        if self.clusters is not None and not begun:
            ways += whole.together(self.clusters.distinct(count), self.possible, others)
        lines: list[Tensor] = []
        for way, lengths in ways:
            if begun:
                lines.append(way.joint.settled(guess.lines[row]))
            for length in lengths:
                starts = way.places.starts(length).unique(dim=0)
                lines += way.joint.best([way.joint.settled(start) for start in starts], 1)
                if job.expired:
                    break
        different = {tuple(line.tolist()): line for line in lines}.values()
        return [
            [guess.with_line(row, candidate, label) for label in range(self.classes)]
            for candidate in different
        ]

    def _residual(self, guess: WordGuess, row: int) -> Proposals | None:
        """What the update without the other sentences proposes; None if it has lost its scale."""
        rest = self._rest(guess, [row])
        if rest is None or self.match.measure == "each":
            return None
        others = {name: rest.scale * value for name, value in rest.value.items()}
        return self.sources.without(others, 1).proposals(1)

    def _improved(self, guess: WordGuess, job: Job) -> WordGuess:
        """After rounds of changes of every sentence."""
        count = len(guess.lines)
        for round_ in range(_ROUNDS):
            before = guess.score
            for row in range(count):
                if count > 1 and not round_:
                    near = [start for part in self._begun(guess, row, count, job) for start in part]
                    guess = self._best(guess, near, [row])
                if not self.dropout:
                    guess = self._swept(guess, row, job)
                guess = self._mixed(guess, row, job)
            if guess.score <= before or job.expired:
                break
        return guess

    def _best(
        self,
        guess: WordGuess,
        others: Sequence[WordGuess],
        rows: Sequence[int],
        rest: Beside | None = None,
    ) -> WordGuess:
        """The nearest of the guess and others that differ from it in these rows alone.

        ``rest`` are the other rows, if the caller has them.
        """
        if not others:
            return guess
        shape = (
            len(others),
            len(rows),
            max(len(other.lines[row]) for other in others for row in rows),
        )
        lines = torch.zeros(shape, dtype=torch.int64, device=others[0].lines[0].device)
        mask = torch.zeros_like(lines)
        for index, other in enumerate(others):
            for number, row in enumerate(rows):
                size = len(other.lines[row])
                lines[index, number, :size], mask[index, number, :size] = other.lines[row], 1
        labels = lines.new_tensor([[other.labels[row] for row in rows] for other in others])
        rest = self._rest(others[0], rows) if rest is None else rest
        scores = self.match.of_batches(lines, labels, mask, rest)
        best = float(scores.max())
        if best <= guess.score + _ROUNDING * abs(guess.score):
            return guess
        return replace(others[int(scores.argmax())], score=best)

    def _rest(self, guess: WordGuess, rows: Sequence[int]) -> Beside | None:
        """The other rows by their summed gradient."""
        total: Tensors = {}
        for row, (line, label) in enumerate(zip(guess.lines, guess.labels, strict=True)):
            if row not in rows:
                gradient = self.match.gradient(line, label)
                total = {
                    name: value + total[name] if total else value
                    for name, value in gradient.items()
                }
        return self.match.beside(total) if total else None

    def _swept(self, guess: WordGuess, row: int, job: Job) -> WordGuess:
        """After one round of changes of each word, and of the order and number of words."""
        line = guess.lines[row]
        others = [*guess.lines[:row], *guess.lines[row + 1 :]]
        residual, rest = self._residual(guess, row), self._rest(guess, [row])
        way = self.whole.beside(others) if residual is None else residual
        tried = [guess.with_line(row, line, label) for label in range(self.classes)]
        guess = self._best(guess, tried, [row], rest)
        likely = way.joint.rivals(line, _RIVALS)
        for place in range(1, len(line) - 1):
            line = guess.lines[row]
            beside = [other[place : place + 1] for other in others if place < len(other) - 1]
            tokens = torch.cat([likely[place], *beside]).unique()
            lines = line.repeat(len(tokens), 1)
            lines[:, place] = tokens
            new = [guess.with_line(row, other) for other in lines if not torch.equal(other, line)]
            guess = self._best(guess, new, [row], rest)
            if job.expired:
                return guess
        more = [
            *way.joint.exchanges(guess.lines[row], _RIVALS * 3),
            *self._resized(guess.lines[row], way),
        ]
        return self._best(guess, [guess.with_line(row, other) for other in more], [row], rest)

    def _resized(self, line: Tensor, way: Proposals) -> list[Tensor]:
        """The likeliest lines with one word left out or put in."""
        count, lines = len(line), []
        if count - 1 in self.possible:
            lines += [torch.cat([line[:i], line[i + 1 :]]) for i in range(1, count - 1)]
        if count + 1 in self.possible:
            likely = way.places.rivals(count + 1, _FEW)
            more = [
                torch.cat([line[:i], token[None], line[i:]])
                for i in range(1, count)
                for token in likely[i]
            ]
            lines += way.joint.best(more, _RIVALS)
        return lines

    def _mixed(self, guess: WordGuess, row: int, job: Job) -> WordGuess:
        """With words of two sentences exchanged at a place or from there on, or one moved."""
        for other in range(row):
            rest = [line for i, line in enumerate(guess.lines) if i not in (row, other)]
            first_line, second_line = guess.lines[row], guess.lines[other]
            pairs = self.whole.joint.beside(rest).best_batches(
                self._moved(first_line, second_line), 2 * _RIVALS
            )
            for place in range(1, min(len(first_line), len(second_line)) - 1):
                for end in (place + 1, len(first_line) + len(second_line)):
                    first = torch.cat(
                        [first_line[:place], second_line[place:end], first_line[end:]]
                    )
                    second = torch.cat(
                        [second_line[:place], first_line[place:end], second_line[end:]]
                    )
                    pairs.append((first, second))
            tried = [guess.with_line(row, a).with_line(other, b) for a, b in pairs]
            guess = self._best(guess, tried, [row, other])
            if job.expired:
                break
        return guess

    def _moved(self, line: Tensor, partner: Tensor) -> list[tuple[Tensor, ...]]:
        """Both lines with a word of one of them moved to the other."""
        pairs: list[tuple[Tensor, ...]] = []
        for giver, taker in ((line, partner), (partner, line)):
            if len(giver) - 1 not in self.possible or len(taker) + 1 not in self.possible:
                continue
            for i in range(1, len(giver) - 1):
                less = torch.cat([giver[:i], giver[i + 1 :]])
                for j in range(1, len(taker)):
                    more = torch.cat([taker[:j], giver[i : i + 1], taker[j:]])
                    pairs.append((less, more) if giver is line else (more, less))
        return pairs


def _flat(tensors: Tensors, names: Sequence[str]) -> Tensor:
    return torch.cat([tensors[name].flatten() for name in names])


def exchanged(batch: list[int], gram: Tensor, along: Tensor) -> tuple[list[int], float]:
    """The batch after exchanges of one member each, while they help, and the cosine of its sum.

    Args:
        batch: numbers of gradients, some of them several times.
        gram: inner products of all gradients.
        along: those with the update, up to a factor.
    """
    cosine = -torch.inf
    while True:
        before = cosine
        for place in range(len(batch)):
            rest = batch[:place] + batch[place + 1 :]
            square = gram[rest][:, rest].sum() + 2 * gram[rest].sum(0) + gram.diagonal()
            cosines = (along[rest].sum() + along) / square.clamp(min=1e-30).sqrt()
            if float(cosines.max()) > cosine:
                cosine, best = float(cosines.max()), int(cosines.argmax())
                batch = [*rest[:place], best, *rest[place:]]
        if cosine <= before:
            return batch, cosine
