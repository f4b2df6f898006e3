"""Words of a text in any script, and one ratio for each pair of texts, of empty ones, too."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias, TypeVar
from unicodedata import normalize

import regex
import torch
from torch import Tensor

from fedsim.metrics.base import Metric

T = TypeVar("T", bound=Sequence[object])


@dataclass(frozen=True)
class TextMetric(Metric):
    """A ratio in [0, 1], higher for a better guess: 1 if both texts are empty, 0 if only one is."""

    unit: ClassVar[str] = "1"
    attacker_wants: ClassVar[Literal["higher", "lower"]] = "higher"
    modality: ClassVar[Literal["image", "text", "any"]] = "text"


def compare(guesses: Sequence[T], truths: Sequence[T], ratio: Callable[[T, T], float]) -> Tensor:
    """``ratio(guess, truth)`` of each pair, float64 ``(batch,)``; ``ratio`` gets no empty text."""
    values = [
        ratio(guess, truth) if guess and truth else float(not guess and not truth)
        for guess, truth in zip(guesses, truths, strict=True)
    ]
    return torch.tensor(values, dtype=torch.float64)


Words: TypeAlias = tuple[str, ...]

_UNSPACED = "".join(
    rf"\p{{{script}}}"
    for script in (
        *("Han", "Hiragana", "Katakana", "Yi", "Thai", "Lao", "Khmer", "Myanmar"),
        *("Tibetan", "Balinese", "Javanese", "New_Tai_Lue", "Tai_Le", "Tai_Tham", "Tai_Viet"),
    )
)
_JOINED = r"[\p{M}\u200c\u200d\U0001F3FB-\U0001F3FF]*"  # marks, joiners, skin tones
_SPACED_LETTER = rf"[[\p{{L}}\p{{N}}]--[{_UNSPACED}]]{_JOINED}"
_UNSPACED_LETTER = rf"[[\p{{L}}\p{{N}}]&&[{_UNSPACED}]]{_JOINED}"
_ALONE = regex.compile(rf"(?V1){_UNSPACED_LETTER}")
_SIGN = regex.compile(r"\S")

WORD = regex.compile(rf"(?V1)(?:{_SPACED_LETTER})+|{_UNSPACED_LETTER}|\p{{So}}{_JOINED}")
"""A run of letters and digits with their marks; in a script without spaces, a single character.

A pictograph, such as an emoji, is a word of its own. On ASCII these are the words of rouge-score.
"""


def composed(text: str) -> str:
    """The text in Unicode's form NFC, in which a letter and its accent are one, stripped."""
    return normalize("NFC", text).strip()


def cased_words(text: str) -> Words:
    """Words of a text with their capitals; a text of signs alone has none."""
    return tuple(WORD.findall(composed(text)))


def words(text: str) -> Words:
    """Words of a text without regard to case; accents count.

    A text of signs alone counts by its characters, so that it equals itself. Only an empty text has
    no words.
    """
    folded = composed(text).casefold()
    return cased_words(folded) or tuple(_SIGN.findall(folded))


def spaced(text: str) -> str:
    """The composed text with a space around each letter of a script without spaces."""
    return str(_ALONE.sub(r" \g<0> ", composed(text)))
