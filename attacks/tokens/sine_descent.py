"""Sentences of a bidirectional network, found by changing one token at a time."""

from collections.abc import Sequence
from itertools import product
from math import prod
from typing import TypeAlias

import torch
from torch import Tensor

from attacks.base import Job
from attacks.tokens.span_membership import SpanSentence, SpanTest
from attacks.tokens.word_clusters import WordCluster, WordClusters

_LENGTHS = 3  # likeliest lengths from which a group of words is settled
_KICKS = 8  # fresh draws of a line's worst tokens, in a row, before the line is given up

TokenIds: TypeAlias = tuple[int, ...]

_ENUMERATED = 512  # most combinations of tokens that are tried exhaustively
_LOOKED_AT = 32  # best combinations from which a descent starts after that
_SENTENCE_SINE = 0.05
"""Largest mean sine of a sentence in the span."""
_NEIGHBOUR_RATIO = 10.0
"""Least ratio of a neighbour's mean sine to that of a sentence in the span."""
_TWINS = 8
"""Most neighbours below that ratio: other sentences that differ in one word."""


class SineDescent:
    """Coordinate descent on the mean sine, with kicks out of local minima.

    Behind the attention a token's input depends on the whole sentence, so that prefixes cannot be
    tested. But the fewer tokens are wrong, the nearer all of them are to the span: on MiniLM with
    four sentences the mean sine is 0.43 with all words wrong, 0.27 with three and 0.14 with one.
    A pass tries every candidate at each position, also in exchange with another position that holds
    it, and then every other length; where none helps, each token is moved elsewhere. A line in a
    local minimum is kicked: some of its tokens are drawn anew, preferably those with a large sine.
    Where words are known to go together, their likeliest order is tried first.
    """

    def __init__(
        self,
        test: SpanTest,
        tokens: Sequence[Tensor],
        stop: int,
        lengths: Sequence[int],
        clusters: WordClusters | None = None,
        *,
        inside: bool = False,
    ) -> None:
        """Take candidates by position and the possible lengths of a sentence.

        ``stop`` is the token that ends a sentence and occurs nowhere else, but ``inside`` a pair.
        """
        self._test, self._stop, self._lengths = test, stop, sorted(lengths)
        self._device = tokens[0].device
        inner = [(part if inside else part[part != stop]).tolist() for part in tokens]
        self._tokens = inner[: self._lengths[-1] - 1]
        # A position that only the end token fits rules out longer sentences.
        self._lengths = [n for n in self._lengths if all(self._tokens[: n - 1])]
        self._clusters = clusters
        self._seen: dict[TokenIds, float] = {}
        self._settled = set[TokenIds]()
        self.sentences: list[SpanSentence] = []

    def run(self, starts: int, most: int | None, rng: torch.Generator, job: Job) -> None:
        """Fill ``sentences`` by at most ``starts`` descents."""
        if not self._lengths:
            return
        if sum(prod(map(len, self._tokens[: n - 1])) for n in self._lengths) <= _ENUMERATED:
            self._try_all(job)
            return
        best = self._together(most, rng, job)
        for _ in range(starts):
            if job.expired or self.complete(most):
                break
            length = self._lengths[int(torch.randint(len(self._lengths), (1,), generator=rng))]
            lines = self._kicked(self._descend(self._draw(length, rng), job), rng, job)
            best = self._kept(lines, best, job)
        self.sentences += [best] if best is not None else []

    def nearest(self, most: int, job: Job) -> list[TokenIds]:
        """The lines of least mean sine on the way to where the groups of words settle.

        For spans that noise has turned, which prove no line.
        """
        rng = torch.Generator()  # draws the kicks, of which there are none
        clusters = self._clusters
        for group in () if clusters is None else clusters.groups:
            assert clusters is not None
            line = self._among(clusters, group, rng, job, False)[0].ids
            if job.expired:
                break
            if line not in self._settled:
                self._settled.add(line)
                self._settle(line, job)
        return sorted(self._seen, key=self._seen.__getitem__)[:most]

    def _together(self, most: int | None, rng: torch.Generator, job: Job) -> SpanSentence | None:
        """Note the sentences of words that go together; returns the best line of no sentence.

        Groups that differ come first, and kicks, which take longest, wait until no group gives a
        sentence without. Each sentence takes its words from the others, which are grouped anew.
        """
        best, clusters = None, self._clusters
        while clusters is not None:
            before = len(self.sentences)
            different = clusters.distinct(len(clusters.groups))
            for groups, kicked in (
                (different, False),
                (clusters.groups, False),
                (clusters.groups, True),
            ):
                best = self._passed(clusters, groups, kicked, best, most, rng, job)
                if job.expired or self.complete(most):
                    return best
                if len(self.sentences) > before:
                    break
            else:
                break
            clusters = clusters.beside([line.ids for line in self.sentences], job)
        return best

    def _passed(
        self,
        clusters: WordClusters,
        groups: Sequence[WordCluster],
        kicked: bool,
        best: SpanSentence | None,
        most: int | None,
        rng: torch.Generator,
        job: Job,
    ) -> SpanSentence | None:
        """Note the sentences of some groups, first among the candidates that are likely there.

        A word that is no candidate may be all that is wrong, so that what these end in is settled
        among all words, the nearest first. Returns the best line of no sentence.
        """
        minima = dict[TokenIds, float]()
        for group in groups:
            if any(group.anchor in line.ids for line in self.sentences):
                continue
            lines = self._among(clusters, group, rng, job, kicked)
            best = self._kept(lines, best, job)
            if not lines[0].in_span:
                minima[lines[0].ids] = lines[0].sine
            if job.expired or self.complete(most):
                return best
        for line in sorted(minima, key=minima.__getitem__):
            if line not in self._settled:
                self._settled.add(line)
                best = self._kept(self._settle(line, job), best, job)
            if job.expired or self.complete(most):
                break
        return best

    def _kept(
        self, lines: list[SpanSentence], best: SpanSentence | None, job: Job
    ) -> SpanSentence | None:
        """Note a sentence in the span; returns the best line of no sentence so far."""
        line = lines[0]
        if line.in_span:
            self._note(lines)
            job.report(len(self.sentences), line.sine, "")
            return best
        return line if best is None or line.sine < best.sine else best

    def _among(
        self,
        clusters: WordClusters,
        group: WordCluster,
        rng: torch.Generator,
        job: Job,
        kicked: bool,
    ) -> list[SpanSentence]:
        """The line settled from the words' likeliest order, or after kicks among them."""
        every = self._tokens
        self._tokens = [part or words for part, words in zip(clusters.tokens, every, strict=False)]
        lines = clusters.lines(group, self._lengths)
        scores = dict(zip(lines, self._score(lines), strict=True))
        settled: list[SpanSentence] = []
        for line in sorted(lines, key=scores.__getitem__)[:_LENGTHS]:
            other = self._settle(line, job)
            settled = min(settled or other, other, key=lambda lines: lines[0].sine)
            if settled[0].in_span or job.expired:
                break
        if kicked and not settled[0].in_span and not job.expired:
            self._tokens = [
                [token for token in words if token in group.words] or words for words in every
            ]
            settled = self._kicked(self._settle(settled[0].ids, job), rng, job)
        self._tokens = every
        return settled

    def _kicked(
        self, lines: list[SpanSentence], rng: torch.Generator, job: Job
    ) -> list[SpanSentence]:
        """A line and its twins after kicks out of its local minimum, while they help."""
        kicks = 0
        while kicks < _KICKS and not lines[0].in_span and not job.expired:
            other = self._descend(self._kick(lines[0].ids, rng), job)
            kicks += 1
            if other[0].sine < lines[0].sine:
                lines, kicks = other, 0
        return lines

    def _note(self, lines: Sequence[SpanSentence]) -> None:
        known = {line.ids for line in self.sentences}
        self.sentences += [line for line in lines if line.ids not in known]

    def _try_all(self, job: Job) -> None:
        lines = [
            (*line, self._stop) for n in self._lengths for line in product(*self._tokens[: n - 1])
        ]
        scores = self._score(lines)
        for i in sorted(range(len(lines)), key=scores.__getitem__)[:_LOOKED_AT]:
            self._note(self._settle(lines[i], job))

    def _draw(self, length: int, rng: torch.Generator) -> TokenIds:
        """Random tokens, preferably none that a sentence already found has at that position."""
        line = []
        for position in range(length - 1):
            fresh = self._fresh(position)
            line.append(fresh[int(torch.randint(len(fresh), (1,), generator=rng))])
        return (*line, self._stop)

    def _kick(self, line: TokenIds, rng: torch.Generator) -> TokenIds:
        """The line with tokens drawn anew, each with a probability that grows with its sine."""
        sines = self._test.tokens(line)
        odds = (sines / sines.max()).tolist()
        chance = torch.rand(len(line), generator=rng).tolist()
        fresh = self._draw(len(line), rng)
        kicked = [
            new if draw < 0.8 * odd else old
            for old, new, odd, draw in zip(line, fresh, odds, chance, strict=True)
        ]
        return (*kicked[:-1], self._stop)

    def complete(self, most: int | None) -> bool:
        """Whether all sentences are found: their number is reached, or they fill the span."""
        lines = [line for line in self.sentences if line.in_span]
        if not lines or (most is not None and len(lines) >= most):
            return bool(lines)
        inputs = torch.cat([self._test.inputs(line.ids) for line in lines])
        return self._test.subspace.filled(inputs)

    def _descend(self, line: TokenIds, job: Job) -> list[SpanSentence]:
        """Settle, first among the tokens that no sentence found so far has at their position."""
        if self.sentences:
            line = self._settle(line, job, fresh=True)[0].ids
        return self._settle(line, job)

    def _fresh(self, position: int) -> list[int]:
        used = {line.ids[position] for line in self.sentences if position < len(line.ids)}
        tokens = self._tokens[position]
        return [token for token in tokens if token not in used] or tokens

    def _settle(self, line: TokenIds, job: Job, *, fresh: bool = False) -> list[SpanSentence]:
        """The local minimum reached from a line; if it is in the span, also neighbours as near."""
        (score,) = self._score([line])
        while True:
            before = line
            rivals: dict[TokenIds, float] = {}
            for position in range(len(self._tokens[0]) == 1, len(line)):
                near = self._neighbours(line, position, fresh=fresh)
                rivals |= zip(near, self._score(near), strict=True)
                best = min(near, key=rivals.__getitem__, default=line)
                if best != line and rivals[best] < score:
                    line, score = best, rivals[best]
                    if len(line) != len(before):
                        break
            if line == before and not job.expired:
                moved = _moved(line)
                rival, best = min(
                    zip(self._score(moved), moved, strict=True), default=(score, line)
                )
                if rival < score:
                    line, score = best, rival
            if line == before or job.expired:
                break
        twins = [
            SpanSentence(other, near, True)
            for other, near in rivals.items()
            if near < _NEIGHBOUR_RATIO * score
        ]
        clear = line == before and score <= _SENTENCE_SINE and len(twins) <= _TWINS
        return [SpanSentence(line, score, clear), *(twins if clear else [])]

    def _neighbours(self, line: TokenIds, position: int, *, fresh: bool) -> list[TokenIds]:
        """Lines with another token at this position, or with another length at the last one."""
        if position == len(line) - 1:
            shorter = [(*line[: n - 1], self._stop) for n in self._lengths if n < len(line)]
            if len(line) + 1 not in self._lengths:
                return shorter
            return shorter + [(*line[:-1], token, self._stop) for token in self._tokens[position]]
        near = []
        for token in self._fresh(position) if fresh else self._tokens[position]:
            if token == line[position]:
                continue
            changed = [*line[:position], token, *line[position + 1 :]]
            near.append(tuple(changed))
            for other in range(1, len(line) - 1):
                if line[other] == token and line[position] in self._tokens[other]:
                    swapped = [*changed]
                    swapped[other] = line[position]
                    near.append(tuple(swapped))
        return near

    def _score(self, lines: Sequence[TokenIds]) -> list[float]:
        fresh = [line for line in lines if line not in self._seen]
        if fresh:
            lengths = torch.tensor([len(line) for line in fresh])
            longest = int(lengths.max())
            ids = torch.tensor([[*line, *[self._stop] * (longest - len(line))] for line in fresh])
            scores = self._test.sentences(ids.to(self._device), lengths.to(self._device))
            self._seen.update(zip(fresh, scores.tolist(), strict=True))
        return [self._seen[line] for line in lines]


def _moved(line: TokenIds) -> list[TokenIds]:
    """Lines in which one token stands elsewhere, and those between have moved up."""
    lines, inner = set[TokenIds](), range(1, len(line) - 1)
    for here in inner:
        rest = line[:here] + line[here + 1 :]
        lines |= {(*rest[:there], line[here], *rest[there:]) for there in inner}
    return [*lines - {line}]
