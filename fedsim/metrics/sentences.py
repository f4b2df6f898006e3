"""Metrics of guessed sentences against a whole private batch."""

from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, TypeVar

import torch
from torch import Tensor

from fedsim.metrics.base import Examples
from fedsim.metrics.rouge import Rouge1, Rouge2, RougeL
from fedsim.metrics.text import TextMetric, words

T = TypeVar("T")
THRESHOLD = 0.25
"""ROUGE-L above which a guess counts as a private sentence (Gupta et al. 2022)."""


@dataclass(frozen=True)
class SentenceRecall(TextMetric):
    """Share of a batch's private sentences for which some guess has a ROUGE-L above 0.25.

    From the table of Gupta et al. 2022 ("FILM") over the number of sentences searched for; they
    stem words for ROUGE, we do not. All guesses for the batch count, including those not assigned
    to an example. The value is the same for every example of the batch.
    """

    name: ClassVar[str] = "sentence_recall"
    of_batch: ClassVar[bool] = True

    def score(self, guess: Examples, truth: Examples) -> Tensor:
        """In [0, 1]."""
        matches = overlaps(guess.all_words, truth.words) > THRESHOLD
        return _repeated(matches.any(0).to(torch.float64).mean(), truth)


@dataclass(frozen=True)
class SentencePrecision(TextMetric):
    """Share of the guesses for a batch with a ROUGE-L above 0.25 to one of its private sentences.

    Computed as for ``sentence_recall``. A sentence guessed twice counts twice; without guesses the
    value is 0.
    """

    name: ClassVar[str] = "sentence_precision"
    of_batch: ClassVar[bool] = True

    def score(self, guess: Examples, truth: Examples) -> Tensor:
        """In [0, 1]."""
        matches = overlaps(guess.all_words, truth.words) > THRESHOLD
        return _repeated(matches.any(1).to(torch.float64).mean().nan_to_num(0.0), truth)


@dataclass(frozen=True)
class FirstGuess(TextMetric):
    """A metric of the attack's first guess, compared with the most similar private sentence.

    Gupta et al. 2022 ("FILM") score a batch of any size in this way: they take the most likely
    guess, which the attack lists first, and the sentence of the batch with the largest ROUGE-L. The
    value is the same for every example. It favours large batches, where even a blind guess does
    better.
    """

    of_batch: ClassVar[bool] = True
    metric: ClassVar[type[TextMetric]]

    def __init_subclass__(cls, metric: type[TextMetric]) -> None:
        cls.metric = metric
        cls.name, cls.title = f"{metric.name}_best", f"{metric.title} of the first guess"

    def score(self, guess: Examples, truth: Examples) -> Tensor:
        """Same range as the metric itself."""
        first = guess.all_words[:1] or ("",)
        nearest = int(overlaps(first, truth.words)[0].argmax())
        row = truth.batch[:1]  # a placeholder: only the words are compared
        pair = Examples(row, first), Examples(row, (truth.words[nearest],))
        return _repeated(self.metric().score(*pair)[0], truth)


@dataclass(frozen=True)
class Rouge1Best(FirstGuess, metric=Rouge1):
    """ROUGE-1 of the first guess and the private sentence most similar to it."""


@dataclass(frozen=True)
class Rouge2Best(FirstGuess, metric=Rouge2):
    """ROUGE-2 of the first guess and the private sentence most similar to it."""


@dataclass(frozen=True)
class RougeLBest(FirstGuess, metric=RougeL):
    """ROUGE-L of the first guess and the private sentence most similar to it."""


@lru_cache(maxsize=2)  # shared by recall and precision; do not change the result in place
def overlaps(guesses: tuple[str, ...], truths: tuple[str, ...]) -> Tensor:
    """ROUGE-L of every pair, float64 ``(guess, truth)``, equal to that of ``RougeL``.

    Two empty texts are equal, as in all text metrics. The rouge-score package needs seconds for the
    16384 pairs of a batch of 128, so the common subsequence is computed with bit vectors.
    """
    ours, theirs = ([words(text) for text in side] for side in (guesses, truths))
    values = [[overlap(g, t) for t in theirs] for g in ours]
    return torch.tensor(values, dtype=torch.float64).reshape(len(guesses), len(truths))


def overlap(guess: tuple[T, ...], truth: tuple[T, ...]) -> float:
    """ROUGE-L of two sequences of words or tokens, in [0, 1]; 1 if both are empty."""
    if not guess or not truth:
        return float(guess == truth)
    return 2 * _common(guess, truth) / (len(guess) + len(truth))


def _common(first: tuple[T, ...], second: tuple[T, ...]) -> int:
    """Length of the longest common subsequence, by the bit vectors of Hyyrö 2004."""
    places: dict[T, int] = {}
    for i, word in enumerate(first):
        places[word] = places.get(word, 0) | 1 << i
    row = every = (1 << len(first)) - 1
    for word in second:
        matched = row & places.get(word, 0)
        row = (row + matched) | (row - matched)
    return len(first) - (row & every).bit_count()


def _repeated(value: Tensor, truth: Examples) -> Tensor:
    return value.repeat(len(truth.words))
