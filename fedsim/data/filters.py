"""Which texts of a data set count, cut into sentences: the preprocessing of FILM."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from fedsim.errors import ConfigError
from fedsim.types import Rows


@dataclass(frozen=True)
class Criterion:
    """One demand on a text.

    Attributes:
        option: its name in ``[task.filter]``.
        demand: what a text has that is kept, as in "fewer than 40 tokens".
        keeps: whether each of these texts has it.
    """

    option: str
    demand: str
    keeps: Callable[[tuple[str, ...]], Sequence[bool]]


@dataclass(frozen=True)
class Filter:
    """The filters of Gupta et al. 2022 ("FILM"), one after another; nothing by default.

    Attributes:
        sentences: cut each text into sentences first.
        criteria: in the order of their cost, so that the dear ones see few texts.
    """

    sentences: bool = False
    criteria: tuple[Criterion, ...] = ()

    def apply(self, rows: Rows, source: str) -> Rows:
        """The rows that pass; the sentences of one row are rows that share its number.

        Args:
            rows: texts, unless nothing is filtered.
            source: data set and split, for messages.

        Raises:
            ConfigError: none is left.
        """
        kept = self.cut(rows, source)
        for criterion in self.criteria:
            assert isinstance(kept.inputs, tuple)
            passed = [i for i, keep in enumerate(criterion.keeps(kept.inputs)) if keep]
            if not passed:
                raise ConfigError(
                    f"task.filter.{criterion.option}: none of the {len(kept)} texts of {source} "
                    f"that are left, of {len(rows)} rows, has {criterion.demand}. "
                    "Loosen it, or choose a longer split."
                )
            kept = kept.take(passed)
        return kept

    def cut(self, rows: Rows, source: str) -> Rows:
        """The rows in sentences, where that is asked for."""
        if not self.sentences:
            return rows
        assert isinstance(rows.inputs, tuple)
        cut = [split_sentences(text) for text in rows.inputs]
        origin = [row for row, sentences in enumerate(cut) for _ in sentences]
        if not origin:
            raise ConfigError(
                f"task.filter.sentences: none of the {len(rows)} texts of {source} holds a "
                "sentence that ends with a full stop, '!' or '?'. Leave it out."
            )
        inputs = tuple(sentence for sentences in cut for sentence in sentences)
        return replace(rows.take(origin), inputs=inputs)


NO_FILTER = Filter()
"""Every row passes as it is."""


def split_sentences(text: str) -> list[str]:
    """The sentences of an English text, end marks included; what has none, as a heading, is lost.

    A mark ends a sentence at the end of the text, or where a space and no small letter follow and
    no initial or title comes before. WikiText puts a space before each mark, and before a closing
    quotation mark.
    """
    found: list[str] = []
    start = 0
    for mark in _END.finditer(text):
        end = mark.end()
        following = _LETTER.search(text, end)
        abbreviated = _ABBREVIATED.search(text, start, mark.start() + 1)
        if following is not None and (abbreviated or following[0].islower()):
            continue
        if text.count('"', start, end) % 2 and (closing := _CLOSING.match(text, end)):
            end = closing.end()
        found.append(text[start:end].strip())
        start = end
    return [sentence for sentence in found if _LETTER.search(sentence)]


_END = re.compile(r"[.!?]+[\"\u201d\u2019)\]]*(?=\s|$)")
_LETTER = re.compile(r"[^\W_]")
_CLOSING = re.compile(r"\s\"(?=\s|$)")
_ABBREVIATED = re.compile(
    r"\b(?:[A-HJ-Z]|Mr|Mrs|Ms|Dr|Prof|St|Jr|Sr|Gen|Col|Capt|Sgt|Maj|Lt|Sen|Gov|Rev|Hon|No|Vol|vs|lit)"
    r"\s?\.\Z"
)
