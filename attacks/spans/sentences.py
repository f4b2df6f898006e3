"""Sentences whose every token lies in the span of a layer behind the first attention."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from attacks.base import Job, Reconstruction
from attacks.spans.certificate import GradientMatch, batch_of, match
from attacks.spans.first_layers import FirstLayers, Layer
from attacks.spans.subspace import Subspace
from fedsim.capture import Observation
from fedsim.records import Certificate
from fedsim.tasks.text import TextTask

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
    """A sentence with its mean sine; ``in_span`` if the span singles it out."""

    ids: tuple[int, ...]
    sine: float
    in_span: bool


def grow(
    judge: Judge, tokens: Sequence[Tensor], limit: float, beam: int, job: Job
) -> tuple[list[SpanSentence], bool]:
    """Sentences of a causal network, grown token by token, and whether time ran out.

    A token's input depends on its prefix alone. A prefix that no token extends within the span is
    a complete sentence. If more than ``beam`` prefixes fit, the nearest are kept.

    Args:
        judge: measures the next tokens.
        tokens: candidates by position.
        limit: largest sine of a token in the span.
        beam: number of prefixes kept at each position.
        job: ends the growth when its time is up.
    """
    if all(len(own) == 1 for own in tokens):
        return [_only(judge, torch.cat(list(tokens)), limit)], job.expired
    prefixes = tokens[0][:, None]
    total = judge.sentences(prefixes, torch.ones_like(prefixes[:, 0]))
    if len(prefixes) > 1:
        prefixes, total = prefixes[total <= limit][:beam], total[total <= limit][:beam]
    else:  # the only candidate is public, and need not be in the span
        total = torch.zeros_like(total)
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
            done.append(SpanSentence(tuple(prefixes[row].tolist()), means[row], True))
        rows, columns = torch.nonzero(fits, as_tuple=True)
        best = sines[rows, columns].argsort()[:beam]
        rows, columns = rows[best], columns[best]
        if position < len(tokens):
            total = total[rows] + sines[rows, columns]
            prefixes = torch.cat([prefixes[rows], tokens[position][columns][:, None]], 1)
    left = (
        [SpanSentence(tuple(line), 1.0, False) for line in prefixes.tolist()] if job.expired else []
    )
    return done + left, job.expired


def _only(judge: Judge, line: Tensor, limit: float) -> SpanSentence:
    """What ``grow`` finds where each position has one candidate, by a single run."""
    sines = judge.tokens(line.tolist())[1:]
    fits = (sines <= limit).cumprod(0)
    size = 1 + int(fits.sum())
    return SpanSentence(tuple(line[:size].tolist()), float(sines @ fits.to(sines)) / size, True)


def proven(
    observation: Observation,
    task: TextTask,
    network: nn.Module,
    first: Sequence[str],
    found: Sequence[SpanSentence],
    tolerance: float,
    known: GradientMatch | None = None,
) -> Reconstruction:
    """The sentences with their confidence, those in the span first.

    Args:
        observation: holds the observed gradient.
        task: defines the loss.
        network: as broadcast, in float32 and eval mode.
        first: names of the first block's weights.
        found: distinct, complete sentences.
        tolerance: relative error of a float32 gradient that counts as rounding.
        known: see ``attacks.spans.certificate.match``.
    """
    count = observation.knowledge.num_examples
    found = sorted(found, key=lambda one: (not one.in_span, one.sine))
    good = [one.ids for one in found if one.in_span]
    rest = [one.ids for one in found if not one.in_span]
    lines, labels, objective = [], [], None
    level: Certificate = "in_span"
    if good:
        proof = match(observation, task, network, good, first, tolerance, known)
        level = "certified" if proof.exact else "in_span"
        lines, labels, objective = proof.lines, proof.labels, proof.error
    more = rest[: max(0, count - len(lines))] if count else rest[: not lines]
    confidence: list[Certificate] = [level] * len(lines)
    confidence += ["guess"] * len(more)
    return Reconstruction(
        batch_of([*lines, *more], task, [*labels, *[-1] * len(more)]),
        objective=objective,
        confidence=tuple(confidence),
    )
