"""Sentences whose every token lies in the span of a layer behind the first attention."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from attacks.base import Job
from attacks.engine.beam import NextWords, Prefixes, grow
from attacks.tokens.span_membership import SpanTest


class SpanSentence(NamedTuple):
    """A sentence with its mean sine; ``in_span`` if the span singles it out.

    ``place`` is that of its first token; ``restarts`` the token behind which places restart.
    The last token of a ``predicted`` sentence is no input, and hence not in the span.
    """

    ids: tuple[int, ...]
    sine: float
    in_span: bool
    place: int = 0
    restarts: int | None = None
    predicted: bool = False


def grown(
    test: SpanTest, tokens: Sequence[Tensor], limit: float, beam: int, job: Job, *, public: bool
) -> tuple[list[SpanSentence], bool]:
    """Sentences of a causal network, grown token by token, and whether time ran out.

    A token's input depends on its prefix alone. A prefix that no token extends within the span is
    a complete sentence. If more than ``beam`` prefixes fit, the nearest are kept.

    Where positions are relative, a token that is repeated has the same input each time. Such a run
    lies in the span at any length and is no sentence.

    Args:
        test: measures the next tokens.
        tokens: candidates by position.
        limit: largest sine of a token in the span.
        beam: number of prefixes kept at each position.
        job: ends the growth when its time is up.
        public: whether the first token is known, and need not be in the span.
    """
    first = tokens[0][:, None]
    total = torch.zeros(len(first), device=first.device)
    if not public:
        total = test.sentences(first, torch.ones_like(first[:, 0]))
    near = total <= limit
    prefixes = Prefixes(first[near][:beam], -total[near][:beam])
    if len(prefixes.ids) and all(len(ids) == 1 for ids in tokens):
        sentences = [_only(test, torch.cat(list(tokens)), limit)]
    else:
        sentences = grow(_Near(test, tokens, limit, beam, job), prefixes, len(tokens), job)
    return [sentence for sentence in sentences if _is_text(sentence, test)], job.expired


@dataclass(frozen=True)
class _Near:
    """Scores prefixes by minus the sum of their tokens' sines; attributes as of ``grown``."""

    test: SpanTest
    tokens: Sequence[Tensor]
    limit: float
    beam: int
    job: Job

    def score(self, prefixes: Prefixes) -> NextWords[SpanSentence]:
        """The nearest words; prefixes that no word in the span extends end."""
        words = self.tokens[prefixes.length]
        sines = self.test.extensions(prefixes.ids, words, self.limit)
        fits = sines <= self.limit
        ended = self.finish(prefixes.take(torch.nonzero(~fits.any(1))[:, 0]))
        near = -sines.where(fits, torch.inf)
        return NextWords(words.expand_as(sines), near, ended, self.beam, self.beam)

    def extend(
        self, prefixes: Prefixes, words: NextWords[SpanSentence], rows: Tensor, columns: Tensor
    ) -> Prefixes:
        """The prefixes ``rows`` with the words in ``columns``."""
        ids = prefixes.longer(rows, words.ids[rows, columns])
        return Prefixes(ids, prefixes.score[rows] + words.score[rows, columns])

    def finish(self, prefixes: Prefixes) -> list[SpanSentence]:
        """All of them, in the span unless their growth was cut short."""
        at, whole = (self.test.layers.begin, self.test.layers.restarts), not self.job.expired
        means = (-prefixes.score / prefixes.length).tolist() if whole else [1.0] * len(prefixes.ids)
        pairs = zip(prefixes.ids.tolist(), means, strict=True)
        return [SpanSentence(tuple(ids), mean, whole, *at) for ids, mean in pairs]


def _is_text(sentence: SpanSentence, test: SpanTest) -> bool:
    """Whether it is no run of one token that any length of it would fit."""
    return not test.layers.everywhere or len(sentence.ids) == 1 or len(set(sentence.ids)) > 1


def _only(test: SpanTest, line: Tensor, limit: float) -> SpanSentence:
    """What ``grown`` finds where each position has one candidate, by a single run."""
    sines = test.tokens(line.tolist())[1:]
    fits = (sines <= limit).cumprod(0)
    size = 1 + int(fits.sum())
    mean = float(sines @ fits.to(sines)) / size
    return SpanSentence(
        tuple(line[:size].tolist()), mean, True, test.layers.begin, test.layers.restarts
    )
