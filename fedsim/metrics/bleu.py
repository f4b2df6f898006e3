"""BLEU of a guessed text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedsim.metrics.base import Examples
from fedsim.metrics.text import TextMetric, compare, spaced


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
