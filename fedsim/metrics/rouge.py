"""ROUGE of a guessed text, with and without special tokens, and BLEU."""

import math
from dataclasses import dataclass
from types import SimpleNamespace
from typing import ClassVar

import torch
from torch import Tensor

from fedsim.metrics.base import Examples
from fedsim.metrics.text import TextMetric, compare, composed, spaced, words


@dataclass(frozen=True)
class Rouge(TextMetric):
    """The ROUGE F measure (Lin 2004) by the rouge-score package, without stemming, in [0, 1].

    With P the share of the guess's units that also occur in the private text and R the reverse,
    ``F = 2 P R / (P + R)``; papers print it in per cent. Words are those of ``metrics.words``
    without regard to case, which on ASCII are the package's own. A private text of one word has no
    pair of words, so that its ROUGE-2 is NaN, and the result row is left empty.

    With special tokens it is LAMP's convention (Balunović et al. 2022): ``[CLS]`` and ``[SEP]``
    become the words ``cls`` and ``sep``, which every guess contains; a guess of nothing else scores
    about 0.2 on short sentences.
    """

    kind: ClassVar[str]
    special: ClassVar[bool]

    def __init_subclass__(cls, kind: str, *, special: bool = False) -> None:
        cls.kind, cls.special = kind, special
        cls.name = f"{kind}_special" if special else kind
        title = f"ROUGE-{kind.removeprefix('rouge')}"
        cls.title = f"{title} with special tokens" if special else title

    def score(self, guess: Examples, truth: Examples) -> Tensor:
        """In [0, 1]."""
        if self.special:
            return self._compare(guess.words_special, truth.words_special)
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
class Rouge1(Rouge, kind="rouge1"):
    """ROUGE-1: overlap of single words."""


@dataclass(frozen=True)
class Rouge2(Rouge, kind="rouge2"):
    """ROUGE-2: overlap of pairs of adjacent words."""


@dataclass(frozen=True)
class RougeL(Rouge, kind="rougeL"):
    """ROUGE-L: longest common subsequence of words."""


@dataclass(frozen=True)
class Rouge1Special(Rouge, kind="rouge1", special=True):
    """ROUGE-1 including special tokens: overlap of single words."""


@dataclass(frozen=True)
class Rouge2Special(Rouge, kind="rouge2", special=True):
    """ROUGE-2 including special tokens: overlap of pairs of adjacent words."""


@dataclass(frozen=True)
class RougeLSpecial(Rouge, kind="rougeL", special=True):
    """ROUGE-L including special tokens: longest common subsequence of words."""


@dataclass(frozen=True)
class Bleu(TextMetric):
    """Sentence BLEU (Papineni et al. 2002) by sacrebleu, divided by 100.

    The geometric mean of the precisions of 1- to 4-grams, times a penalty for guesses that are too
    short. Signature ``nrefs:1|case:mixed|eff:yes|tok:13a|smooth:exp``: a text of fewer than four
    words is scored on the orders that it has. Before the tokenizer, letters and their accents are
    composed, and each letter of a script without spaces is set apart as a word.
    """

    name: ClassVar[str] = "bleu"
    title: ClassVar[str] = "BLEU"

    def score(self, guess: Examples, truth: Examples) -> Tensor:
        """In [0, 1]."""
        from sacrebleu.metrics import BLEU

        scorer = BLEU(effective_order=True)

        def ratio(guess: str, truth: str) -> float:
            if guess == truth:  # sacrebleu deletes the text "<skipped>"
                return 1.0
            # sacrebleu exponentiates a logarithm and gives 100.00000000000004 for equal words.
            return min(1.0, float(scorer.sentence_score(guess, [truth]).score) / 100)

        return compare([*map(spaced, guess.words)], [*map(spaced, truth.words)], ratio)
