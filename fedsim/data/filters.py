"""Selection of texts and their split into sentences: the preprocessing of FILM."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from fedsim.errors import ConfigError
from fedsim.types import Rows


@dataclass(frozen=True)
class Criterion:
    """A condition that texts have to meet.

    Attributes:
        option: name of the condition in ``[task.filter]``.
        demand: property of the texts that are kept, for example "fewer than 40 tokens".
        keeps: function that decides for each text whether it has the property.
    """

    option: str
    demand: str
    keeps: Callable[[tuple[str, ...]], Sequence[bool]]


@dataclass(frozen=True)
class Filter:
    """Filters of Gupta et al. 2022 ("FILM"), applied one after another; by default there are none.

    Attributes:
        sentences: split each text into sentences first.
        criteria: conditions, each on what the ones before it left.
    """

    sentences: bool = False
    criteria: tuple[Criterion, ...] = ()

    def apply(self, rows: Rows, source: str) -> Rows:
        """The rows that pass; sentences of the same text share its row number.

        Args:
            rows: texts, unless the filter is empty.
            source: data set and split, for messages.

        Raises:
            ConfigError: no row is left.
        """
        fitting = self.cut(rows, source)
        for criterion in self.criteria:
            assert isinstance(fitting.inputs, tuple)
            passed = [i for i, keep in enumerate(criterion.keeps(fitting.inputs)) if keep]
            if not passed:
                raise ConfigError(
                    f"task.filter.{criterion.option}: none of the {len(fitting)} texts of {source} "
                    f"that are left of {len(rows)} rows has {criterion.demand}. "
                    "Relax the condition, or choose a longer split."
                )
            fitting = fitting.take(passed)
        return fitting

    def cut(self, rows: Rows, source: str) -> Rows:
        """The rows, split into sentences if the filter asks for that.

        Raises:
            ConfigError: no text holds a sentence.
        """
        if not self.sentences:
            return rows
        assert isinstance(rows.inputs, tuple)
        cut = [split_sentences(text) for text in rows.inputs]
        origin = [row for row, sentences in enumerate(cut) for _ in sentences]
        if not origin:
            raise ConfigError(
                f"task.filter.sentences: none of the {len(rows)} texts of {source} holds a "
                "sentence that ends with a full stop, '!' or '?'. Leave this option out."
            )
        inputs = tuple(sentence for sentences in cut for sentence in sentences)
        return replace(rows.take(origin), inputs=inputs)


NO_FILTER = Filter()
"""The empty filter, which every row passes unchanged."""


def split_sentences(text: str) -> list[str]:
    """Sentences of an English text with their end marks; text without one, as in headings, is lost.

    A mark ends a sentence at the end of the text, or if a space follows, the next letter is not
    small, and the mark does not belong to an initial or a title. WikiText puts a space before each
    mark and before a closing quotation mark.
    """
    sentences: list[str] = []
    start = 0
    for mark in _END.finditer(text):
        end = mark.end()
        following = _LETTER.search(text, end)
        abbreviated = _ABBREVIATED.search(text, start, mark.start() + 1)
        if following is not None and (abbreviated or following[0].islower()):
            continue
        if text.count('"', start, end) % 2 and (closing := _CLOSING.match(text, end)):
            end = closing.end()
        sentences.append(text[start:end].strip())
        start = end
    return [sentence for sentence in sentences if _LETTER.search(sentence)]


_END = re.compile(r"[.!?]+[\"\u201d\u2019)\]]*(?=\s|$)")
_LETTER = re.compile(r"[^\W_]")
_CLOSING = re.compile(r"\s\"(?=\s|$)")
_ABBREVIATED = re.compile(
    r"\b(?:[A-HJ-Z]|Mr|Mrs|Ms|Dr|Prof|St|Jr|Sr|Gen|Col|Capt|Sgt|Maj|Lt|Sen|Gov|Rev|Hon|No|Vol|vs|lit)"
    r"\s?\.\Z"
)
