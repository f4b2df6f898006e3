"""Words that an update proposes for one sentence of an encoder, given the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from attacks.span.encoder.joint_words import JointWords
from attacks.tokens.soft_traces import SoftTraces
from attacks.tokens.table_rows import TableRows
from attacks.tokens.word_clusters import WordCluster
from fedsim.types import Tensors

_REPEATED = 1.5  # most tokens of a sentence, as a multiple of its different words
_FITTING = 3  # lengths tried for words that share a sentence
_OTHERS = 10.0  # how much farther the tokens of other sentences are
_NEAREST = 12  # tokens nearest to the span at a place, which may be words of the batch
_ROWS = 4.0  # how much nearer a token is at a place where its row says that it stands


@dataclass(frozen=True)
class PositionScores:
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

    @cached_property
    def words(self) -> Tensor:
        """The statistics without the ends, which are no words."""
        words = self.statistics.clone()
        words[:, [self.start, self.end]] = torch.inf
        return words

    @cached_property
    def centred(self) -> Tensor:
        """The same less the mean over places."""
        return self.words - self.words[1:].mean(0)

    @cached_property
    def ends(self) -> Tensor:
        """Statistic of the end at each place beside that of its usual word, ``(place,)``."""
        size = min(_NEAREST, self.words.shape[1])
        few = self.words[1:].topk(size, dim=1, largest=False).values.median(1).values
        return self.statistics[1:, self.end] - few

    def lengths(self, possible: Sequence[int], count: int) -> list[int]:
        """The lengths that the end token's place makes likeliest."""
        return sorted(possible, key=lambda n: float(self.ends[n - 2]))[:count]

    def rivals(self, length: int, count: int) -> Tensor:
        """The likeliest tokens at each place ``(place, rival)``; both ends are meaningless.

        Behind the ``count`` that stand out from other places follow the two nearest ones, which are
        the better choice for an update with little noise.
        """
        size = min(_NEAREST, self.words.shape[1])
        near = self.words[:length].topk(size, dim=1, largest=False).indices
        bag = near[1 : length - 1].unique()
        best = self.centred[:length, bag].topk(min(count, len(bag)), dim=1, largest=False)
        return torch.cat([bag[best.indices], near[:, :2]], 1)

    def starts(self, length: int) -> Tensor:
        """Two sentences of this many tokens: those that stand out, and the nearest ones."""
        lines = self.rivals(length, 1)[:, :2].T.clone()
        lines[:, 0], lines[:, -1] = self.start, self.end
        return lines


@dataclass(frozen=True)
class Proposals:
    """What the layers before any attention say of a sentence.

    Attributes:
        places: proposes lengths and words.
        joint: chooses the words of a sentence together.
        parts: which of its tokens may belong to one sentence, several guesses.
    """

    places: PositionScores
    joint: JointWords
    parts: tuple[Tensor, ...] = ()

    def within(self, part: Tensor) -> Proposals:
        """The same of few tokens, as a mask ``(token,)`` of those of ``joint``."""
        barred = self.joint.barred | ~part
        statistics = self.places.statistics.clone()
        statistics[:, self.joint.tokens[barred & ~self.joint.barred]] += _OTHERS
        places = replace(self.places, statistics=statistics)
        return Proposals(places, replace(self.joint, barred=barred))

    def beside(self, lines: Sequence[Tensor]) -> Proposals:
        """The same beside other sentences of the batch."""
        return replace(self, joint=self.joint.beside(lines))

    def together(
        self, groups: Sequence[WordCluster], possible: Sequence[int], others: Sequence[Tensor]
    ) -> list[tuple[Proposals, list[int]]]:
        """The same of words that share a sentence, other than these, with its likeliest lengths."""
        seen = {token for line in others for token in line.tolist()}
        lengths = self.places.lengths(possible, len(possible))
        ways = []
        for group in groups:
            size = len(group.words) + 2
            fitting = [n for n in lengths if size <= n <= _REPEATED * size]
            if group.anchor not in seen:
                part = torch.isin(self.joint.tokens, self.joint.tokens.new_tensor([*group.words]))
                ways.append((self.within(part), fitting[:_FITTING]))
        return ways


@dataclass(frozen=True)
class Sources:
    """The parts of an update that propose words.

    Attributes:
        traces: of the first layer.
        rows: of the embedding tables, if they tell.
        start: token that begins every sentence.
        end: token that ends every sentence.
    """

    traces: SoftTraces
    rows: TableRows | None
    start: int
    end: int

    def proposals(self, count: int) -> Proposals:
        """For so many sentences."""
        traces = self._ranked(count)
        ends = traces.words.new_tensor([self.start, self.end])
        joint = JointWords.of(traces, ends, count, self.rows)
        parts = [] if self.rows is None else self.rows.parts(joint.tokens)
        return Proposals(
            PositionScores(traces.statistics, self.start, self.end), joint, tuple(parts)
        )

    def without(self, others: Tensors, count: int) -> Sources:
        """What is left for so many sentences without the part that others explain."""
        traces = self._ranked(count)
        traces = traces.without(others, others, count * len(traces.statistics))
        rows = None if self.rows is None else self.rows.without(others)
        return replace(self, traces=traces, rows=rows)

    def _ranked(self, count: int) -> SoftTraces:
        """The traces with what the rows add to the statistics."""
        if self.rows is None:
            return self.traces
        tokens, statistics = self.rows.shortlist(count), self.traces.statistics.clone()
        statistics[:, tokens] -= _ROWS * self.rows.weights(tokens).to(statistics)
        return replace(self.traces, statistics=statistics)
