"""Sentences of a causal model, grown token by token by the likelihood of their inputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from attacks.base import Job
from attacks.tokens.evidence import Evidence, total_ratio
from attacks.tokens.first_layers import FirstLayers
from attacks.tokens.next_token_shift import DirectionalShift

_NEAR_TOKENS = 8  # of these, those tried in the second block
_FIRST_WORDS = 4  # factor on both behind a single prefix, the start of every sentence
_BEGIN_TOKENS = 4  # first tokens that tell sentences of a batch from one another
_HOPELESS = 60.0  # log-probability below a sentence of the same begin that ends a prefix
_LINES = 32  # candidates kept of each first word, divided by the sentences of the batch
END_GAIN = 1.0
"""Log-likelihood ratio of the end of a sentence, beside what the model says."""
NEXT_TOKENS = 48
"""Tokens tried behind each prefix."""
PREFIXES = 8
"""Prefixes kept for each sentence of the batch."""
FEWEST_LINES = 8
"""The least of that."""


@dataclass(frozen=True)
class ScoredPrefix:
    """A sentence without its end token, and its log-probability."""

    ids: tuple[int, ...]
    score: float


@dataclass(frozen=True)
class PrefixSearch:
    """Beam search over prefixes.

    The input of every layer to a token of a causal model depends on its prefix alone, so that a
    prefix is scored by the layers of the first two blocks without knowing the rest. The ratios
    of its next tokens are normalised, so that a sentence that changes over to another one of the
    batch pays for the change, and gains nothing by its length.

    Attributes:
        layers: the network's first two blocks.
        near: evidence of the layers behind the first attention.
        later: evidence of those of the second block.
        first: log-likelihood ratio before any attention, ``(position, vocabulary)``.
        shift: the language model; None if the network has no head over the vocabulary.
        end: id of the token that ends a sentence; None if none does.
        beam: number of prefixes kept.
        count: sentences of the batch.
    """

    layers: FirstLayers
    near: Sequence[Evidence]
    later: Sequence[Evidence]
    first: Tensor
    shift: DirectionalShift | None
    end: int | None
    beam: int
    count: int

    def run(self, starts: Tensor, job: Job, ahead: int | None = None) -> list[ScoredPrefix]:
        """Sentences of every length, the likeliest first.

        Args:
            starts: first tokens ``(start, position)``.
            job: ends the search when its time is up.
            ahead: most tokens behind the first ones; None for sentences of any length.
        """
        prefixes, score = starts, self.first.new_zeros(len(starts))
        sentences: list[ScoredPrefix] = []
        best: dict[tuple[int, ...], float] = {}
        longest = min(len(self.first), starts.shape[1] + (ahead or len(self.first)))
        for position in range(starts.shape[1], longest + 1):
            lines, ends = prefixes.tolist(), score
            last = position == longest or job.expired
            if not last:
                gain, tokens, over = self._extensions(prefixes, position)
                shares = torch.cat([gain, over[:, None]], 1).log_softmax(1)
                ends = score + shares[:, -1]
                total = score[:, None] + shares[:, :-1]
            sentences += [
                ScoredPrefix(tuple(line), log)
                for line, log in zip(lines, ends.tolist(), strict=True)
            ]
            if last:
                break
            alive = self._hopeful(score, lines, ends.tolist(), best)
            if not alive.any():
                break
            prefixes, tokens, total = prefixes[alive], tokens[alive], total[alive].flatten()
            beam = max(self.beam, _FIRST_WORDS * _NEAR_TOKENS if len(prefixes) == 1 else 0)
            index = self._kept(total, tokens.flatten(), beam)
            row, column = index // tokens.shape[1], index % tokens.shape[1]
            score = total[index]
            prefixes = torch.cat([prefixes[row], tokens[row, column][:, None]], 1)
        return sorted(sentences, key=lambda sentence: -sentence.score)

    def _hopeful(
        self,
        score: Tensor,
        lines: list[list[int]],
        ends: list[float],
        best: dict[tuple[int, ...], float],
    ) -> Tensor:
        """Which prefixes may yet become sentences, since none becomes likelier as it grows.

        ``best`` is of the sentences so far, by their first tokens, and is brought up to date.
        """
        begins = [tuple(line[:_BEGIN_TOKENS]) for line in lines]
        for begin, log in zip(begins, ends, strict=True):
            best[begin] = max(log, best.get(begin, -torch.inf))
        rank = 1 if self.count == 1 else 2 * self.count
        least = sorted(best.values(), reverse=True)[rank - 1] if len(best) >= rank else -torch.inf
        rivals = score.new_tensor([max(least, best[begin]) for begin in begins])
        hopeful: Tensor = score >= rivals - _HOPELESS
        return hopeful

    def _kept(self, total: Tensor, tokens: Tensor, beam: int) -> Tensor:
        """The likeliest prefixes, at most ``PREFIXES`` with the same last token.

        The sentences of a batch differ in how strongly they show, and a weak one must not lose its
        place to variants of a strong one.
        """
        order = total.argsort(descending=True)
        if self.count == 1:
            return order[:beam]
        seen: dict[int, int] = {}
        chosen = []
        for index, token in zip(order.tolist(), tokens[order].tolist(), strict=True):
            seen[token] = seen.get(token, 0) + 1
            if seen[token] <= PREFIXES:
                chosen.append(index)
            if len(chosen) == beam:
                break
        return torch.tensor(chosen, device=total.device)

    def _next_words(self, prefixes: Tensor) -> Tensor:
        if self.shift is None:
            return self.first.new_zeros(len(prefixes), self.first.shape[1])
        return self.shift.next_tokens(prefixes)

    def _extensions(self, prefixes: Tensor, position: int) -> tuple[Tensor, Tensor, Tensor]:
        """Log-likelihood ratio and ids ``(prefix, token)`` of the best next tokens of each prefix.

        And what speaks for its end, ``(prefix,)``, in the same unit.
        """
        logs = self._next_words(prefixes)
        wider = _FIRST_WORDS if len(prefixes) == 1 else 1
        over = logs.new_zeros(len(logs))
        if self.end is not None:
            over = logs[:, self.end].clone()
            logs[:, self.end] = -torch.inf
            if position == len(prefixes) == 1:  # a sentence has a word
                over.fill_(-torch.inf)
        size = min(wider * NEXT_TOKENS, self.first.shape[1])
        gain, tokens = (self.first[position] + logs).topk(size, dim=1)
        for evidence, few in ((self.near, _NEAR_TOKENS), (self.later, _NEAR_TOKENS)):
            if evidence:
                inputs = self.layers.of_extensions([e.layer for e in evidence], prefixes, tokens)
                gain = gain + total_ratio(evidence, inputs)
            gain, index = gain.topk(min(wider * few, gain.shape[1]), dim=1)
            tokens = tokens.gather(1, index)
        return gain, tokens, over + END_GAIN


def varied(sentences: Sequence[ScoredPrefix], start: int, count: int) -> list[ScoredPrefix]:
    """The likeliest sentences of each first word, of different lengths, for some first words."""
    by_word: dict[int, dict[int, ScoredPrefix]] = {}
    for sentence in sorted(sentences, key=lambda sentence: -sentence.score):
        if len(sentence.ids) > start + 1:
            by_length = by_word.setdefault(sentence.ids[start], {})
            if len(by_length) < max(FEWEST_LINES, _LINES // count):
                by_length.setdefault(len(sentence.ids), sentence)
    lines = [
        sentence
        for by_length in list(by_word.values())[: 2 * count]
        for sentence in by_length.values()
    ]
    return lines or list(sentences[:1])
