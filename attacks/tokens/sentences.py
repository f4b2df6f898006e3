"""Sentences whose every token lies in the span of a layer behind the first attention."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from attacks.base import Job
from attacks.tokens.span_membership import SpanTest


@dataclass(frozen=True)
class SpanSentence:
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


def grow(
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
    prefixes = tokens[0][:, None]
    at = test.layers.begin, test.layers.restarts
    total = test.sentences(prefixes, torch.ones_like(prefixes[:, 0]))
    if public:
        total = torch.zeros_like(total)
    prefixes, total = prefixes[total <= limit][:beam], total[total <= limit][:beam]
    if len(prefixes) and all(len(ids) == 1 for ids in tokens):
        sentence = _only(test, torch.cat(list(tokens)), limit)
        return [sentence] if _is_text(sentence, test) else [], job.expired
    done: list[SpanSentence] = []
    for position in range(1, len(tokens) + 1):
        if not len(prefixes) or job.expired:
            break
        if position < len(tokens):
            sines = test.extensions(prefixes, tokens[position], limit)
        else:
            sines = total.new_ones(len(prefixes), 1)
        fits = sines <= limit
        ended = ~fits.any(1)
        means = (total / position).tolist()
        for row in torch.nonzero(ended)[:, 0].tolist():
            done.append(SpanSentence(tuple(prefixes[row].tolist()), means[row], True, *at))
        rows, columns = torch.nonzero(fits, as_tuple=True)
        best = sines[rows, columns].argsort()[:beam]
        rows, columns = rows[best], columns[best]
        if position < len(tokens):
            total = total[rows] + sines[rows, columns]
            prefixes = torch.cat([prefixes[rows], tokens[position][columns][:, None]], 1)
    if job.expired:
        done += [SpanSentence(tuple(line), 1.0, False, *at) for line in prefixes.tolist()]
    return [sentence for sentence in done if _is_text(sentence, test)], job.expired


def _is_text(sentence: SpanSentence, test: SpanTest) -> bool:
    """Whether it is no run of one token that any length of it would fit."""
    return not test.layers.everywhere or len(sentence.ids) == 1 or len(set(sentence.ids)) > 1


def _only(test: SpanTest, line: Tensor, limit: float) -> SpanSentence:
    """What ``grow`` finds where each position has one candidate, by a single run."""
    sines = test.tokens(line.tolist())[1:]
    fits = (sines <= limit).cumprod(0)
    size = 1 + int(fits.sum())
    mean = float(sines @ fits.to(sines)) / size
    return SpanSentence(
        tuple(line[:size].tolist()), mean, True, test.layers.begin, test.layers.restarts
    )
