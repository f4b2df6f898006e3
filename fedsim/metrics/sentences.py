"""Guessed sentences against a whole private batch: many guesses for it, or the first one alone."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import torch
from torch import Tensor

from fedsim.metrics.base import Examples
from fedsim.metrics.nerr import NamedEntityRecovery, RuledEntityRecovery
from fedsim.metrics.rouge import Rouge1, Rouge2, RougeL
from fedsim.metrics.text import TextMetric

THRESHOLD = 0.25
"""A guess counts as a private sentence above this ROUGE-L (Gupta et al. 2022)."""


@dataclass(frozen=True)
class SentenceRecall(TextMetric):
    """Share of a batch's private sentences for which some guess has a ROUGE-L above 0.25.

    From the table of Gupta et al. 2022 ("FILM") over the number of sentences searched for; their
    ROUGE stems words, ours does not. All guesses for the batch count, also those that no example
    was left for. The same for every example.
    """

    name: ClassVar[str] = "sentence_recall"

    def score(self, guess: Examples, truth: Examples) -> Tensor:
        """In [0, 1]."""
        found = overlaps(guess.all_words, truth.words) > THRESHOLD
        return _repeated(found.any(0).to(torch.float64).mean(), truth)


@dataclass(frozen=True)
class SentencePrecision(TextMetric):
    """Share of the guesses for a batch with a ROUGE-L above 0.25 to some private sentence of it.

    As ``sentence_recall``. A sentence guessed twice counts twice; no guess at all is worth 0.
    """

    name: ClassVar[str] = "sentence_precision"

    def score(self, guess: Examples, truth: Examples) -> Tensor:
        """In [0, 1]."""
        found = overlaps(guess.all_words, truth.words) > THRESHOLD
        return _repeated(found.any(1).to(torch.float64).mean().nan_to_num(0.0), truth)


@dataclass(frozen=True)
class FirstGuess(TextMetric):
    """A metric of the attack's first guess and the private sentence that it matches best.

    How Gupta et al. 2022 ("FILM") score a batch of any size: the likeliest guess, which the attack
    lists first, against the sentence of the batch with the largest ROUGE-L. The same for every
    example. The more sentences a batch has, the better even a blind guess does.
    """

    metric: ClassVar[type[TextMetric]]

    def available(self) -> str:
        """As the metric itself."""
        return self.metric().available()

    def score(self, guess: Examples, truth: Examples) -> Tensor:
        """As the metric itself."""
        first = guess.all_words[:1] or ("",)
        nearest = int(overlaps(first, truth.words)[0].argmax())
        row = truth.batch[:1]  # only the words are compared
        pair = Examples(row, first), Examples(row, (truth.words[nearest],))
        return _repeated(self.metric().score(*pair)[0], truth)


@dataclass(frozen=True)
class Rouge1Best(FirstGuess):
    """ROUGE-1 of the first guess and the private sentence that it matches best."""

    name: ClassVar[str] = "rouge1_best"
    title: ClassVar[str] = "ROUGE-1 of the first guess"
    metric: ClassVar[type[TextMetric]] = Rouge1


@dataclass(frozen=True)
class Rouge2Best(FirstGuess):
    """ROUGE-2 of the first guess and the private sentence that it matches best."""

    name: ClassVar[str] = "rouge2_best"
    title: ClassVar[str] = "ROUGE-2 of the first guess"
    metric: ClassVar[type[TextMetric]] = Rouge2


@dataclass(frozen=True)
class RougeLBest(FirstGuess):
    """ROUGE-L of the first guess and the private sentence that it matches best."""

    name: ClassVar[str] = "rougeL_best"
    title: ClassVar[str] = "ROUGE-L of the first guess"
    metric: ClassVar[type[TextMetric]] = RougeL


@dataclass(frozen=True)
class NamedEntityRecoveryBest(FirstGuess):
    """NERR of the first guess and the private sentence that it matches best."""

    name: ClassVar[str] = "nerr_best"
    title: ClassVar[str] = "NERR of the first guess"
    metric: ClassVar[type[TextMetric]] = NamedEntityRecovery


@dataclass(frozen=True)
class RuledEntityRecoveryBest(FirstGuess):
    """``nerr_rules`` of the first guess and the private sentence that it matches best."""

    name: ClassVar[str] = "nerr_rules_best"
    title: ClassVar[str] = "NERR by rules of the first guess"
    metric: ClassVar[type[TextMetric]] = RuledEntityRecovery


@lru_cache(maxsize=2)  # for recall and precision together; do not change it in place
def overlaps(guesses: tuple[str, ...], truths: tuple[str, ...]) -> Tensor:
    """ROUGE-L of every pair, float64 ``(guess, truth)``, equal to that of ``RougeL``.

    Two empty texts are equal, as in all metrics of texts. The rouge-score package needs
    seconds for the 16384 pairs of a batch of 128, so the subsequence is counted in words of bits.
    """
    from rouge_score.tokenizers import DefaultTokenizer

    words = DefaultTokenizer(use_stemmer=False).tokenize
    ours, theirs = ([words(text) for text in side] for side in (guesses, truths))
    values = [[_f_measure(g, t) for t in theirs] for g in ours]
    found = torch.tensor(values, dtype=torch.float64).reshape(len(guesses), len(truths))
    return found.masked_fill(torch.outer(_empty(guesses), _empty(truths)), 1.0)


def _empty(texts: tuple[str, ...]) -> Tensor:
    return torch.tensor([not text.strip() for text in texts], dtype=torch.bool)


def _f_measure(guess: list[str], truth: list[str]) -> float:
    return 2 * _common(guess, truth) / (len(guess) + len(truth)) if guess and truth else 0.0


def _common(first: list[str], second: list[str]) -> int:
    """Length of the longest common subsequence, by the bit vectors of Hyyrö 2004."""
    places: dict[str, int] = {}
    for i, word in enumerate(first):
        places[word] = places.get(word, 0) | 1 << i
    row = every = (1 << len(first)) - 1
    for word in second:
        matched = row & places.get(word, 0)
        row = (row + matched) | (row - matched)
    return len(first) - (row & every).bit_count()


def _repeated(value: Tensor, truth: Examples) -> Tensor:
    return value.repeat(len(truth.words))
