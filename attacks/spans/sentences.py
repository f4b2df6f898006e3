"""Sentences whose every token lies in the span of a layer behind the first attention."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from attacks.base import Job, Reconstruction
from attacks.spans.certificate import GradientMatch, Prover, batch_of
from attacks.spans.first_layers import FirstLayers, Layer
from attacks.spans.subspace import Subspace
from fedsim.records import Certificate

_CHUNK = 1 << 13  # tokens in one forward pass


@dataclass(frozen=True)
class Judge:
    """Measures the distance of a sentence's tokens from the span of one layer."""

    layers: FirstLayers
    layer: Layer
    subspace: Subspace

    def sentences(self, ids: Tensor, lengths: Tensor) -> Tensor:
        """Mean sine over the tokens of each sentence ``(sentence,)``; padding on the right."""
        return self.sines(ids, lengths).sum(1) / lengths

    def sines(self, ids: Tensor, lengths: Tensor) -> Tensor:
        """The sine of each token ``(sentence, token)``, 0 on the padding to the right."""
        found = ids.new_zeros(ids.shape, dtype=next(self.layers.network.parameters()).dtype)
        size = max(1, _CHUNK // ids.shape[1])
        for start in range(0, len(ids), size):
            length = lengths[start : start + size]
            longest = int(length.max())
            mask = (torch.arange(longest, device=ids.device) < length[:, None]).long()
            inputs = self.layers.of_sentences(self.layer, ids[start : start + size, :longest], mask)
            found[start : start + size, :longest] = self.subspace.distance(inputs) * mask
        return found

    def inputs(self, ids: Sequence[int]) -> Tensor:
        """The layer's inputs ``(token, width)`` for one sentence."""
        line = torch.tensor([list(ids)], device=self.subspace.basis.device)
        return self.layers.of_sentences(self.layer, line, torch.ones_like(line))[0]

    def behind(self, pads: int) -> Judge:
        """The same judge of sentences that begin behind padding."""
        return replace(self, layers=self.layers.behind(pads)) if pads else self

    def tokens(self, ids: Sequence[int]) -> Tensor:
        """The sine of each token of one sentence."""
        return self.subspace.distance(self.inputs(ids))

    def extensions(self, prefixes: Tensor, tokens: Tensor, limit: float = 1.0) -> Tensor:
        """Sine of each token as the next one of each prefix ``(prefix, token)``.

        Of a sine above ``limit`` only a lower bound above it.
        """
        size = max(1, _CHUNK // (prefixes.shape[1] + len(tokens)))
        found = []
        for part in prefixes.split(size):
            (inputs,) = self.layers.of_extensions([self.layer], part, tokens)
            sines = self.subspace.least_distance(inputs)
            near = sines <= limit
            sines[near] = self.subspace.distance(inputs[near])
            found.append(sines)
        return torch.cat(found)


@dataclass(frozen=True)
class SpanSentence:
    """A sentence with its mean sine; ``in_span`` if the span singles it out.

    ``place`` is that of its first token.
    """

    ids: tuple[int, ...]
    sine: float
    in_span: bool
    place: int = 0


def grow(
    judge: Judge, tokens: Sequence[Tensor], limit: float, beam: int, job: Job, *, public: bool
) -> tuple[list[SpanSentence], bool]:
    """Sentences of a causal network, grown token by token, and whether time ran out.

    A token's input depends on its prefix alone. A prefix that no token extends within the span is
    a complete sentence. If more than ``beam`` prefixes fit, the nearest are kept.

    Where positions are relative, a token that is repeated has the same input each time. Such a run
    lies in the span at any length and is no sentence.

    Args:
        judge: measures the next tokens.
        tokens: candidates by position.
        limit: largest sine of a token in the span.
        beam: number of prefixes kept at each position.
        job: ends the growth when its time is up.
        public: whether the first token is known, and need not be in the span.
    """
    prefixes, place = tokens[0][:, None], judge.layers.begin
    total = judge.sentences(prefixes, torch.ones_like(prefixes[:, 0]))
    if public:
        total = torch.zeros_like(total)
    prefixes, total = prefixes[total <= limit][:beam], total[total <= limit][:beam]
    if len(prefixes) and all(len(own) == 1 for own in tokens):
        found = _only(judge, torch.cat(list(tokens)), limit)
        return [found] if _is_text(found, judge) else [], job.expired
    done: list[SpanSentence] = []
    for position in range(1, len(tokens) + 1):
        if not len(prefixes) or job.expired:
            break
        if position < len(tokens):
            sines = judge.extensions(prefixes, tokens[position], limit)
        else:
            sines = total.new_ones(len(prefixes), 1)
        fits = sines <= limit
        ended = ~fits.any(1)
        means = (total / position).tolist()
        for row in torch.nonzero(ended)[:, 0].tolist():
            done.append(SpanSentence(tuple(prefixes[row].tolist()), means[row], True, place))
        rows, columns = torch.nonzero(fits, as_tuple=True)
        best = sines[rows, columns].argsort()[:beam]
        rows, columns = rows[best], columns[best]
        if position < len(tokens):
            total = total[rows] + sines[rows, columns]
            prefixes = torch.cat([prefixes[rows], tokens[position][columns][:, None]], 1)
    if job.expired:
        done += [SpanSentence(tuple(line), 1.0, False, place) for line in prefixes.tolist()]
    return [one for one in done if _is_text(one, judge)], job.expired


def _is_text(found: SpanSentence, judge: Judge) -> bool:
    """Whether it is no run of one token that any length of it would fit."""
    return not judge.layers.everywhere or len(found.ids) == 1 or len(set(found.ids)) > 1


def _only(judge: Judge, line: Tensor, limit: float) -> SpanSentence:
    """What ``grow`` finds where each position has one candidate, by a single run."""
    sines = judge.tokens(line.tolist())[1:]
    fits = (sines <= limit).cumprod(0)
    size = 1 + int(fits.sum())
    mean = float(sines @ fits.to(sines)) / size
    return SpanSentence(tuple(line[:size].tolist()), mean, True, judge.layers.begin)


def proven(
    prover: Prover, found: Sequence[SpanSentence], known: GradientMatch | None = None
) -> Reconstruction:
    """The sentences with their confidence, those in the span first.

    Args:
        prover: compares gradients.
        found: distinct, complete sentences.
        known: see ``attacks.spans.certificate.Prover.match``.
    """
    count = prover.observation.knowledge.num_examples
    found = sorted(found, key=lambda one: (not one.in_span, one.sine))
    good = [one.ids for one in found if one.in_span]
    rest = [one.ids for one in found if not one.in_span]
    lines, labels, objective = [], [], None
    level: Certificate = "in_span"
    if good:
        proof = prover.match(good, known)
        level = "certified" if proof.exact else "in_span"
        lines, labels, objective = proof.lines, proof.labels, proof.error
    more = rest[: max(0, count - len(lines))] if count else rest[: not lines]
    confidence: list[Certificate] = [level] * len(lines)
    confidence += ["guess"] * len(more)
    return Reconstruction(
        batch_of([*lines, *more], prover.task, [*labels, *[-1] * len(more)]),
        objective=objective,
        confidence=tuple(confidence),
    )
