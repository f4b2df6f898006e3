"""Sentences of a causal model, grown token by token by the likelihood of their inputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from attacks.base import Job
from attacks.spans.cuts import CUTS
from attacks.spans.evidence import Evidence, total_ratio
from attacks.spans.first_layers import FirstLayers
from attacks.spans.told import UpdatedModel

_GIVEN_UP = 30.0  # nats below the best sentence at which no prefix can catch up


@dataclass(frozen=True)
class Scored:
    """A sentence without its end token, and its log-likelihood ratio against random tokens."""

    ids: tuple[int, ...]
    score: float


@dataclass(frozen=True)
class PrefixSearch:
    """Beam search over prefixes.

    The input of every layer to a token of a causal model depends on its prefix alone, so that a
    prefix is scored by the layers of the first two blocks without knowing the rest.

    Attributes:
        layers: the network's first two blocks.
        near: evidence of the layers behind the first attention.
        later: evidence of those of the second block.
        first: log-likelihood ratio before any attention, ``(position, vocabulary)``.
        told: the language model; None if the network has no head over the vocabulary.
        end: id of the token that ends a sentence.
        beam: number of prefixes kept.
    """

    layers: FirstLayers
    near: Sequence[Evidence]
    later: Sequence[Evidence]
    first: Tensor
    told: UpdatedModel | None
    end: int | None
    beam: int

    def run(self, starts: Tensor, job: Job) -> list[Scored]:
        """Sentences of every length, the likeliest first.

        Args:
            starts: first tokens ``(start, 1)``.
            job: ends the search when its time is up.
        """
        prefixes, score = starts, self.first.new_zeros(len(starts))
        found: list[Scored] = []
        longest = len(self.first)
        for position in range(1, longest + 1):
            told = self._told(prefixes)
            ends = score if self.end is None else score + told[:, self.end]
            lines = prefixes.tolist()
            found += [
                Scored(tuple(line), own) for line, own in zip(lines, ends.tolist(), strict=True)
            ]
            best = max(one.score for one in found)
            if position == longest or job.expired or float(score.max()) < best - _GIVEN_UP:
                break
            gain, tokens = self._extensions(prefixes, told, position)
            total = (score[:, None] + gain).flatten()
            score, index = total.topk(min(self.beam, len(total)))
            row, column = index // tokens.shape[1], index % tokens.shape[1]
            prefixes = torch.cat([prefixes[row], tokens[row, column][:, None]], 1)
        return sorted(found, key=lambda one: -one.score)

    def _told(self, prefixes: Tensor) -> Tensor:
        if self.told is None:
            return self.first.new_zeros(len(prefixes), self.first.shape[1])
        return self.told.next_tokens(prefixes)

    def _extensions(self, prefixes: Tensor, told: Tensor, position: int) -> tuple[Tensor, Tensor]:
        """Gain and ids ``(prefix, token)`` of the best next tokens of each prefix."""
        size = min(CUTS.next_tokens, self.first.shape[1])
        gain, tokens = (self.first[position] + told).topk(size, dim=1)
        for evidence, few in ((self.near, CUTS.near_tokens), (self.later, CUTS.near_tokens)):
            if evidence:
                inputs = self.layers.of_extensions([e.layer for e in evidence], prefixes, tokens)
                gain = gain + total_ratio(evidence, inputs)
            gain, index = gain.topk(min(few, gain.shape[1]), dim=1)
            tokens = tokens.gather(1, index)
        return gain, tokens
