"""Sentences whose every token lies in the span of a layer behind the first attention."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from attacks.base import Job
from attacks.engine.beam import NextWords, Prefixes, grow
from attacks.tokens.attacked_model import AttackedModel
from attacks.tokens.attention_inputs import AttentionInputs
from attacks.tokens.exact_traces import subspace
from attacks.tokens.first_layers import FirstLayers, Layer
from attacks.tokens.subspace import EQUAL_RANK, Subspace
from fedsim.errors import CannotAttack

_CHUNK = 1 << 13  # tokens in one forward pass


@dataclass(frozen=True)
class SpanTest:
    """Measures the distance of a sentence's tokens from the span of one layer.

    ``attention`` has the layer's inputs without a pass of the network, if they are so simple.
    """

    layers: FirstLayers
    layer: Layer
    subspace: Subspace
    attention: AttentionInputs | None = None

    def sentences(self, ids: Tensor, lengths: Tensor) -> Tensor:
        """Mean sine over the tokens of each sentence ``(sentence,)``; padding on the right."""
        sines = ids.new_zeros(ids.shape, dtype=next(self.layers.network.parameters()).dtype)
        size = max(1, _CHUNK // ids.shape[1])
        for start in range(0, len(ids), size):
            length = lengths[start : start + size]
            longest = int(length.max())
            mask = (torch.arange(longest, device=ids.device) < length[:, None]).long()
            inputs = self._inputs(ids[start : start + size, :longest], mask)
            sines[start : start + size, :longest] = self.subspace.distance(inputs) * mask
        return sines.sum(1) / lengths

    def inputs(self, ids: Sequence[int]) -> Tensor:
        """The layer's inputs ``(token, width)`` for one sentence."""
        line = torch.tensor([list(ids)], device=self.subspace.basis.device)
        return self._inputs(line, torch.ones_like(line))[0]

    def _inputs(self, ids: Tensor, mask: Tensor) -> Tensor:
        """The layer's inputs ``(sentence, token, width)``."""
        if self.attention is not None:
            return self.attention.inputs(ids, mask)
        return self.layers.of_sentences(self.layer, ids, mask)

    def placed_at(self, begin: int, restarts: int | None = None) -> SpanTest:
        """The same test of texts behind padding, or of rows whose places restart."""
        return replace(self, layers=self.layers.placed_at(begin, restarts))

    def tokens(self, ids: Sequence[int]) -> Tensor:
        """The sine of each token of one sentence."""
        return self.subspace.distance(self.inputs(ids))

    def extensions(self, prefixes: Tensor, tokens: Tensor, limit: float = 1.0) -> Tensor:
        """Sine of each token as the next one of each prefix ``(prefix, token)``.

        Of a sine above ``limit`` only a lower bound above it.
        """
        size = max(1, _CHUNK // (prefixes.shape[1] + len(tokens)))
        parts = []
        for part in prefixes.split(size):
            (inputs,) = self.layers.of_extensions([self.layer], part, tokens)
            sines = self.subspace.least_distance(inputs)
            near = sines <= limit
            sines[near] = self.subspace.distance(inputs[near])
            parts.append(sines)
        return torch.cat(parts)


def best_test(model: AttackedModel, before: Subspace) -> SpanTest:
    """The layer behind the attention that separates right sentences from wrong ones best.

    For a causal model it is the layer with the smallest ratio of rank to width. The descent of an
    encoder needs the smoothest objective, which the first layer gives that is at most two thirds
    full.

    Raises:
        CannotAttack: in every layer the tokens fill the width or have left no trace.
    """
    layers, observation = model.layers, model.observation
    tests, ranks, least = list[SpanTest](), [], EQUAL_RANK * before.rank
    sent = [layer for layer in layers.contexts if layer.weights(observation.received)]
    widths = {layer: len(layer.side(observation.sent)) for layer in sent}
    for layer in sorted(sent, key=lambda candidate: -widths[candidate]) if layers.causal else sent:
        if layers.causal and tests and min(map(_filled, tests)) < least / widths[layer]:
            break  # no narrower layer can have more room
        space = subspace(model, layer)
        ranks.append(f"{space.rank} of {space.most}")
        if least <= space.rank < space.most:
            tests.append(SpanTest(layers, layer, space))
            if not layers.causal and 3 * space.rank <= 2 * space.width:
                return tests[-1]
    if not tests:
        raise CannotAttack(
            f"the first layer's gradient has rank {before.rank} at width {before.width}, and "
            f"those behind the attention {', '.join(ranks) or 'are not sent'}",
            "Their spans have to contain every token and still leave room. Take fewer tokens than "
            "the width, and a model of two blocks or more: the last block of a classifier has a "
            "gradient for one token only.",
        )
    return min(tests, key=_filled)


def _filled(test: SpanTest) -> float:
    """The share of the width that the span takes."""
    return test.subspace.rank / test.subspace.width


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
) -> list[SpanSentence]:
    """Sentences of a causal network, grown token by token.

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
    return [sentence for sentence in sentences if _is_text(sentence, test)]


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
