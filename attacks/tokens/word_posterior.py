"""The words that a batch likely holds, with calibrated probabilities."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from attacks.tokens.soft_traces import SoftTraces
from fedsim.tasks.text import TextTask

_BAG_SPREAD = 0.5  # smallest spread of the scores of true tokens
_BAG_ODDS = 1.0  # factor on the odds of a true token; above 1, noise alone yields words
_BAG_TAIL = 0.01  # share of the vocabulary that the tail of false tokens is measured on

_ROUNDS = 15
"""Rounds of expectation-maximisation; later ones change no probability by a hundredth."""
_SHOWN = 12
"""Words in a note."""
_LEAST_PROBABILITY = 0.1
"""Smallest probability of a word that is worth a mention."""


@dataclass(frozen=True)
class TwoGroups:
    """False and true tokens among the scores of all positions.

    Scores of false tokens have an exponential tail, measured where a batch has too few
    tokens to matter. Those of true tokens are normal. The share of positions with a true token and
    their distribution maximise the likelihood (expectation-maximisation), so that nothing but the
    update itself calibrates the probabilities: local false discovery rates (Efron 2008).

    Attributes:
        scores: ``(position, token)``.
        count: sentences of the batch, the most true tokens at a position.
    """

    scores: Tensor
    count: int

    def probabilities(self) -> Tensor:
        """Probability of each token at each position, ``(position, token)``."""
        tail = self._tail()
        best = self.scores.topk(min(self.count, self.scores.shape[1]), dim=1).values
        middle = float(best.median())
        spread = max(_BAG_SPREAD, float((best - middle).abs().median()))
        middle, share = middle + spread, 0.5
        probabilities = torch.zeros_like(self.scores)
        for _ in range(_ROUNDS):
            log_true = -(((self.scores - middle) / spread).square()) / 2
            log_true = log_true - math.log(spread * math.sqrt(2 * math.pi))
            # A token beyond all others is not less true for being beyond the true ones.
            log_true = torch.where(self.scores > middle, log_true.max(), log_true)
            before = _BAG_ODDS * share * self.count / self.scores.shape[1]
            odds = before * (log_true - tail).exp()
            probabilities = odds / (1 + odds + (odds.sum(1, keepdim=True) - odds) / self.count)
            total = float(probabilities.sum())
            if total < 1e-6:
                return probabilities
            share = min(1.0, max(1e-3, total / (self.count * len(probabilities))))
            middle = float((probabilities * self.scores).sum()) / total
            wide = float((probabilities * (self.scores - middle).square()).sum()) / total
            spread = max(_BAG_SPREAD, wide**0.5)
        return probabilities

    def _tail(self) -> Tensor:
        """Log-density of false tokens, relative to the whole vocabulary at a position."""
        size = self.scores.shape[1]
        inner = min(0.25, max(_BAG_TAIL / 10, 8 * self.count / size))
        ends = [max(_BAG_TAIL, min(0.5, 5 * inner)), inner]
        outer = [self.scores.quantile(1 - end, dim=1, keepdim=True) for end in ends]
        length = (outer[1] - outer[0]).clamp(min=1e-6) / max(math.log(ends[0] / ends[1]), 0.1)
        # Inside the tail the density is that of its begin: no candidates are there.
        excess = ((self.scores - outer[0]) / length).clamp(min=0)
        return math.log(ends[0]) - length.log() - excess


def likely_words(traces: SoftTraces, count: int) -> list[tuple[int, float]]:
    """Token ids with the probability that the batch holds them, the likeliest first.

    Args:
        traces: of the update, whether or not they are fitted.
        count: sentences of the batch.

    Returns:
        Those of at least ``_LEAST_PROBABILITY``; none if the first layer says nothing, its span has
        no room, or is none of inputs. What they are worth is measured, see
        ``benchmarks.bench_captures``.
    """
    if traces.first is None or traces.first.full or traces.foreign:
        return []
    probabilities = posterior(traces.statistics[:, traces.words], count)
    order = probabilities.argsort(descending=True).tolist()
    ids, values = traces.words.tolist(), probabilities.tolist()
    return [(ids[i], values[i]) for i in order if values[i] >= _LEAST_PROBABILITY]


def posterior(statistics: Tensor, count: int) -> Tensor:
    """Probability ``(token,)`` that a token occurs at any position.

    Args:
        statistics: log-distances from the span ``(position, token)``.
        count: sentences of the batch.
    """
    # The first layer of a model with rotary positions sees words without their places.
    bare = len(statistics) > 1 and torch.equal(statistics[0], statistics[-1])
    if bare:
        statistics, count = statistics[:1], count * len(statistics)
    scores = _scores(statistics)
    # Some tokens are near at every position, whatever the batch.
    if not bare:
        scores = scores - scores.median(0, keepdim=True).values.clamp(min=0)
    probabilities = TwoGroups(scores, count).probabilities()
    return 1 - (1 - probabilities).clamp(min=1e-12).log().sum(0).exp()


def _scores(statistics: Tensor) -> Tensor:
    """How much nearer each token is than the usual one at a place, in standard deviations."""
    values = statistics.double()
    low, middle, high = values.quantile(values.new_tensor([0.25, 0.5, 0.75]), dim=1)[:, :, None]
    scores: Tensor = (middle - values) / ((high - low) / 1.349).clamp(min=1e-6)
    return scores


def note_of(words: Sequence[tuple[int, float]], task: TextTask) -> str:
    """One line about the likeliest words; empty without any.

    Args:
        words: token ids with their probabilities, the likeliest first.
        task: holds the tokenizer; its special tokens are no words.
    """
    real = [(word, p) for word, p in words if word not in task.spec.special_ids]
    if not real:
        return ""
    level = next((p for p in (0.9, 0.5) if real[0][1] >= p), _LEAST_PROBABILITY)
    sure = [word for word, p in real if p >= level]
    shown = ", ".join(repr(task.text([word]).strip()) for word in sure[:_SHOWN])
    more = ", ..." if len(sure) > _SHOWN else ""
    return f"{len(sure)} word{'s' * (len(sure) > 1)} with p >= {level:g}: {shown}{more}"
