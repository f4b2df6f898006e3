"""Words of a text in any script, as every text metric counts them."""

from __future__ import annotations

from typing import TypeAlias
from unicodedata import normalize

import regex

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
