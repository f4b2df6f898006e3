"""Exchange of words, their order and their number until a sentence's gradient is nearest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from attacks.base import Job
from attacks.spans.cuts import CUTS
from attacks.spans.joint_words import JointWords
from attacks.spans.rematch import Rematch

_NEAREST = 12  # tokens nearest to the span at a place, which may be words of the batch
_LENGTHS = 6  # likeliest lengths, in which words are chosen together
_FEW = 2  # words put in at each place
_RIVALS = 4  # words tried at each place
_SHORTEST = 3  # tokens
_ROUNDING = 1e-5  # relative error of a similarity in float32


@dataclass(frozen=True)
class Places:
    """Which tokens of the batch stand at which place, before any attention.

    At every place the tokens of the batch are nearer to the span than others, for a token's
    embedding outweighs that of its place, and the strongest of them are nearest everywhere. What
    tells the place of a token is how near it is there compared with other places.

    Attributes:
        statistics: of :class:`Evidence`, ``(position, vocabulary)``.
        start: token that begins every sentence.
        end: token that ends every sentence.
    """

    statistics: Tensor
    start: int
    end: int

    def __post_init__(self) -> None:
        """Subtract the mean over places."""
        inner = self.statistics.clone()
        inner[:, [self.start, self.end]] = torch.inf
        object.__setattr__(self, "_inner", inner)
        object.__setattr__(self, "_centred", inner - inner[1:].mean(0))
        size = min(_NEAREST, inner.shape[1])
        few = inner[1:].topk(size, dim=1, largest=False).values.median(1).values
        object.__setattr__(self, "_ends", self.statistics[1:, self.end] - few)

    _inner: Tensor = None  # type: ignore[assignment]
    _centred: Tensor = None  # type: ignore[assignment]
    _ends: Tensor = None  # type: ignore[assignment]

    @property
    def longest(self) -> int:
        """Tokens of the longest sentence."""
        return len(self.statistics)

    def lengths(self, possible: Sequence[int], count: int) -> list[int]:
        """The lengths that the end token's place makes likeliest."""
        return sorted(possible, key=lambda n: float(self._ends[n - 2]))[:count]

    def rivals(self, length: int, count: int) -> Tensor:
        """The likeliest tokens at each place ``(place, rival)``; both ends are meaningless.

        Behind the ``count`` that stand out from other places follow the two nearest ones, which are
        the better choice for an update with little noise.
        """
        size = min(_NEAREST, self._inner.shape[1])
        near = self._inner[:length].topk(size, dim=1, largest=False).indices
        bag = near[1 : length - 1].unique()
        best = self._centred[:length, bag].topk(min(count, len(bag)), dim=1, largest=False)
        return torch.cat([bag[best.indices], near[:, :2]], 1)

    def starts(self, length: int) -> Tensor:
        """Two sentences of this many tokens: those that stand out, and the nearest ones."""
        lines = self.rivals(length, 1)[:, :2].T.clone()
        lines[:, 0], lines[:, -1] = self.start, self.end
        return lines


@dataclass(frozen=True)
class WordSearch:
    """A descent on sentences by the similarity of the whole model's gradient with the update.

    Attributes:
        places: proposes lengths and words.
        joint: chooses words together.
        match: measures.
        classes: number of classes.
    """

    places: Places
    joint: JointWords
    match: Rematch
    classes: int

    def run(self, lengths: Sequence[int] | None, job: Job) -> tuple[list[int], int]:
        """The nearest sentence and its class; ``lengths`` are those that may occur."""
        possible = list(lengths or range(_SHORTEST, self.places.longest + 1))
        best: tuple[float, int, Tensor] | None = None
        for length in self.places.lengths(possible, _LENGTHS):
            line = self.joint.settled(self.places.starts(length)[0])
            lines = line.repeat(self.classes, 1)
            scores = self.match.similarity(lines, torch.arange(self.classes, device=lines.device))
            score = float(scores.max())
            if best is None or score > best[0]:
                best = score, int(scores.argmax()), line
            if job.expired:
                break
        assert best is not None
        score, label, line = best
        for _ in range(CUTS.sweeps):
            before = score
            line, score = self._sweep(line, label, job)
            line, score = self._resized(line, label, score, possible)
            if score <= before or job.expired:
                break
        return line.tolist(), label

    def _measure(self, lines: Tensor, label: int) -> Tensor:
        return self.match.similarity(lines, lines.new_full((len(lines),), label))

    def _sweep(self, line: Tensor, label: int, job: Job) -> tuple[Tensor, float]:
        """The line after one round of exchanges of each word with a rival or another place."""
        score = float(self._measure(line[None], label)[0])
        likely = self.joint.rivals(line, _RIVALS)
        for place in range(1, len(line) - 1):
            if job.expired:
                break
            tokens = likely[place].unique()
            tokens = tokens[tokens != line[place]]
            lines = line.repeat(len(tokens), 1)
            lines[:, place] = tokens
            swapped = line.repeat(len(line) - 1 - place, 1)
            for row, other in enumerate(range(place + 1, len(line) - 1)):
                swapped[row, [place, other]] = line[[other, place]]
            lines = torch.cat([lines, swapped[swapped[:, place] != line[place]]])
            if not len(lines):
                continue
            scores = self._measure(lines, label)
            if float(scores.max()) > score + _ROUNDING * abs(score):
                score, line = float(scores.max()), lines[int(scores.argmax())]
        return line, score

    def _resized(
        self, line: Tensor, label: int, score: float, possible: Sequence[int]
    ) -> tuple[Tensor, float]:
        """The line with one word left out or put in, where that is nearer."""
        count = len(line)
        sizes: dict[int, list[Tensor]] = {
            count - 1: [torch.cat([line[:i], line[i + 1 :]]) for i in range(1, count - 1)]
        }
        if count + 1 in possible:
            likely = self.places.rivals(count + 1, _FEW)
            sizes[count + 1] = [
                torch.cat([line[:i], token[None], line[i:]])
                for i in range(1, count)
                for token in likely[i]
            ]
        for size, lines in sizes.items():
            if size not in possible or not lines:
                continue
            scores = self._measure(torch.stack(lines), label)
            if float(scores.max()) > score + _ROUNDING * abs(score):
                score, line = float(scores.max()), lines[int(scores.argmax())]
        return line, score
