"""ROUGE of a guessed text, with and without special tokens."""

from __future__ import annotations

import math
from dataclasses import dataclass
from types import SimpleNamespace
from typing import ClassVar

import torch
from torch import Tensor

from fedsim.metrics.base import Examples
from fedsim.metrics.text import TextMetric, compare
from fedsim.metrics.words import composed, words


@dataclass(frozen=True)
class Rouge(TextMetric):
    """The ROUGE F measure (Lin 2004) by the rouge-score package, without stemming, in [0, 1].

    With P the share of the guess's units that also occur in the private text and R the reverse,
    ``F = 2 P R / (P + R)``; papers print it in per cent. Words are those of ``metrics.words``
    without regard to case, which on ASCII are the package's own. A private text of one word has no
    pair of words, so that its ROUGE-2 is NaN, and the result row is left empty.
    """

    kind: ClassVar[str]

    def score(self, guess: Examples, truth: Examples) -> Tensor:
        """In [0, 1]."""
        return self._compare(guess.words, truth.words)

    def _compare(self, guesses: tuple[str, ...], truths: tuple[str, ...]) -> Tensor:
        from rouge_score.rouge_scorer import RougeScorer

        scorer = RougeScorer([self.kind], tokenizer=SimpleNamespace(tokenize=words))

        def f_measure(guess: str, truth: str) -> float:
            return float(scorer.score(truth, guess)[self.kind].fmeasure)

        values = compare([*map(composed, guesses)], [*map(composed, truths)], f_measure)
        pairless = [self.kind == "rouge2" and len(words(truth)) == 1 for truth in truths]
        return values.masked_fill(torch.tensor(pairless, dtype=torch.bool), math.nan)


@dataclass(frozen=True)
class Rouge1(Rouge):
    """ROUGE-1: overlap of single words."""

    name: ClassVar[str] = "rouge1"
    title: ClassVar[str] = "ROUGE-1"
    kind: ClassVar[str] = "rouge1"


@dataclass(frozen=True)
class Rouge2(Rouge):
    """ROUGE-2: overlap of pairs of adjacent words."""

    name: ClassVar[str] = "rouge2"
    title: ClassVar[str] = "ROUGE-2"
    kind: ClassVar[str] = "rouge2"


@dataclass(frozen=True)
class RougeL(Rouge):
    """ROUGE-L: longest common subsequence of words."""

    name: ClassVar[str] = "rougeL"
    title: ClassVar[str] = "ROUGE-L"
    kind: ClassVar[str] = "rougeL"


@dataclass(frozen=True)
class RougeSpecial(Rouge):
    """LAMP's convention (Balunović et al. 2022): special tokens count as words.

    ``[CLS]`` and ``[SEP]`` become the words ``cls`` and ``sep``, which every guess contains; a
    guess of nothing else scores about 0.2 on short sentences.
    """

    def score(self, guess: Examples, truth: Examples) -> Tensor:
        """In [0, 1]."""
        return self._compare(guess.words_special, truth.words_special)


@dataclass(frozen=True)
class Rouge1Special(RougeSpecial):
    """ROUGE-1 including special tokens: overlap of single words."""

    name: ClassVar[str] = "rouge1_special"
    title: ClassVar[str] = "ROUGE-1 with special tokens"
    kind: ClassVar[str] = "rouge1"


@dataclass(frozen=True)
class Rouge2Special(RougeSpecial):
    """ROUGE-2 including special tokens: overlap of pairs of adjacent words."""

    name: ClassVar[str] = "rouge2_special"
    title: ClassVar[str] = "ROUGE-2 with special tokens"
    kind: ClassVar[str] = "rouge2"


@dataclass(frozen=True)
class RougeLSpecial(RougeSpecial):
    """ROUGE-L including special tokens: longest common subsequence of words."""

    name: ClassVar[str] = "rougeL_special"
    title: ClassVar[str] = "ROUGE-L with special tokens"
    kind: ClassVar[str] = "rougeL"
