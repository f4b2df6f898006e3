"""Recovery of a private text's named entities, found by spaCy or, without it, by rules."""

from __future__ import annotations

import importlib
import importlib.util
import math
import re
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, TypeAlias

import torch
from torch import Tensor

from fedsim.metrics.base import Examples
from fedsim.metrics.text import TextMetric
from fedsim.metrics.words import WORD, Words, cased_words, composed

Entity: TypeAlias = Words
"""Words of an entity, without the spaces and signs that tokenizers move around."""

_MODEL = "en_core_web_sm"
_NAMED = frozenset({"PERSON", "ORG", "GPE", "LOC", "PRODUCT", "EVENT"})


@dataclass(frozen=True)
class EntityRecovery(TextMetric):
    """Share of the private text's distinct entities that occur in the guess.

    An entity occurs if all its words follow one another with the same capitals; spaces and signs
    between them are ignored. If the private text has no entity the score is NaN, and the result row
    is left empty. This is the rate as described by Gupta et al. 2022 ("FILM"); their code computes
    the F measure of the entities of both texts, and 0 if the private one has none.
    """

    @abstractmethod
    def entities(self, text: str) -> frozenset[Entity]:
        """Distinct entities of a text."""

    @abstractmethod
    def names(self, text: str) -> frozenset[Entity]:
        """The entities that name a person, organisation, place, product or event."""

    def score(self, guess: Examples, truth: Examples) -> Tensor:
        """In [0, 1], or NaN."""
        rates = [
            self._rate(cased_words(ours), self.entities(theirs))
            for ours, theirs in zip(guess.words, truth.words, strict=True)
        ]
        return torch.tensor(rates, dtype=torch.float64)

    def _rate(self, guess: Entity, wanted: frozenset[Entity]) -> float:
        if not wanted:
            return math.nan
        return sum(_holds(guess, entity) for entity in wanted) / len(wanted)


@dataclass(frozen=True)
class NamedEntityRecovery(EntityRecovery):
    """Named-entity recovery ratio (NERR, Gupta et al. 2022) with the entities that spaCy finds.

    Entities of all types count. spaCy and its model ``en_core_web_sm`` are an optional extra; the
    model was trained on text with capitals and finds few names in the text of an uncased
    vocabulary.
    """

    name: ClassVar[str] = "nerr"
    title: ClassVar[str] = "NERR"

    def available(self) -> str:
        """What has to be installed first; empty if nothing."""
        if importlib.util.find_spec("spacy") is None:
            return "spaCy is not installed; run pip install -e '.[entities]', or use 'nerr_rules'"
        if importlib.util.find_spec(_MODEL) is None:
            return (
                f"its model is missing; run python -m spacy download {_MODEL}, or use 'nerr_rules'"
            )
        return ""

    def entities(self, text: str) -> frozenset[Entity]:
        """The entities of spaCy's pipeline."""
        return frozenset(cased_words(entity.text) for entity in _pipeline()(text).ents) - {()}

    def names(self, text: str) -> frozenset[Entity]:
        """The entities of the types of which FILM requires at least one in a sentence."""
        entities = [entity for entity in _pipeline()(text).ents if entity.label_ in _NAMED]
        return frozenset(cased_words(entity.text) for entity in entities) - {()}


@dataclass(frozen=True)
class RuledEntityRecovery(EntityRecovery):
    """Named-entity recovery ratio with entities found by rules, which need no model.

    Not comparable with ``nerr``. An entity is

    - a run of capitalised words, joined by ``of``, ``de`` and the like. A word at the start of a
      sentence is left out, since its capital carries no information; so is a run of single letters.
    - a word of two or more capitals, also at the start of a sentence.
    - a number, with its separators (``1,000`` and ``10:30`` are one number); together with an
      adjacent month it is a date.
    - a weekday, or a month other than ``may`` and ``march``.
    - an e-mail address.

    In a text without small letters only the last three are found. The same is true of text from an
    uncased vocabulary: its names are missed, and a text without other entities has no score.
    """

    name: ClassVar[str] = "nerr_rules"
    title: ClassVar[str] = "NERR by rules"

    def entities(self, text: str) -> frozenset[Entity]:
        """The entities that the rules find."""
        mails, dates, names = _split(composed(text))
        return _distinct(dates + names) | {cased_words(mail[0]) for mail in mails}

    def names(self, text: str) -> frozenset[Entity]:
        """Runs of capitalised words, and words in capitals."""
        return _distinct(_split(composed(text))[2])


# Tokenizers put spaces on both sides of a sign or on neither; WikiText writes 1 @,@ 000.
_MAIL = re.compile(r"[\w.+-]+(\s?)@\1\w[\w-]*(?:\1\.\1\w[\w-]*)+?(?![\w-]|\.\w)")
_IN_NAME = re.compile(r"\s*|(\s?)@?['\u2019&-]@?\1")
_IN_NUMBER = re.compile(r"(\s?)@?[.,:/-]@?\1")
_ABBREVIATED = re.compile(r"\s?\.\s*")
_SENTENCE_END = re.compile(r"[.!?\u3002\uff01\uff1f\u061f\u0964\n]|[:,]\s*[\"“]")
_LINKS = frozenset({"of", "de", "del", "der", "van", "von", "da", "la"})
_TITLES = frozenset({"Mr", "Mrs", "Ms", "Dr", "Prof", "St", "Jr", "Sr", "Gen", "Lt", "Sen"})
_WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_MONTHS = (
    *("january", "february", "march", "april", "may", "june"),
    *("july", "august", "september", "october", "november", "december"),
)
_CALENDAR = frozenset({*_WEEKDAYS, *_MONTHS}) - {"march", "may"}

Mentions: TypeAlias = list[re.Match[str]]


def _split(text: str) -> tuple[Mentions, list[Mentions], list[Mentions]]:
    """E-mail addresses, dates and numbers, and names."""
    mails = list(_MAIL.finditer(text))
    rest = [
        word
        for word in WORD.finditer(text)
        if not any(mail.start() <= word.start() < mail.end() for mail in mails)
    ]
    dates = _dates(text, rest)
    dated = {word.start() for run in dates for word in run}
    return mails, dates, _names(text, [word for word in rest if word.start() not in dated])


def _distinct(runs: list[Mentions]) -> frozenset[Entity]:
    entities = {tuple(word[0] for word in run) for run in runs}
    return frozenset(e for e in entities if any(len(word) > 1 or word.isdigit() for word in e))


def _dates(text: str, words: Mentions) -> list[Mentions]:
    """Numbers, joined with an adjacent month, and the names of days and months."""
    runs: list[Mentions] = []
    open_ = False  # True if the last run ends right before this word
    for before, gap, word in _steps(text, words):
        month = before is not None and not gap.strip() and before[0].lower() in _MONTHS
        if any(letter.isdigit() for letter in word[0]):
            if open_ and (month or _IN_NUMBER.fullmatch(gap)):
                runs[-1].append(word)
            else:
                runs.append([before, word] if before is not None and month else [word])
            open_ = True
        elif open_ and not gap.strip() and word[0].lower() in _MONTHS:
            runs[-1].append(word)
        else:
            open_ = word[0].lower() in _CALENDAR
            runs += [[word]] if open_ else []
    return runs


def _names(text: str, words: Mentions) -> list[Mentions]:
    """Runs of capitalised words; empty for a word capitalised as the start of a sentence."""
    runs: list[Mentions] = []
    if not any(letter.islower() for letter in text):
        return runs
    open_, links = False, Mentions()
    for before, gap, word in _steps(text, words):
        short = before is not None and (before[0] in _TITLES or _initial(before[0]))
        dotted = short and _ABBREVIATED.fullmatch(gap)
        starts = before is None or (_SENTENCE_END.search(gap) and not dotted)
        joined = open_ and not starts and (dotted or _IN_NAME.fullmatch(gap))
        if word[0][0].isupper():
            if joined:
                runs[-1] += [*links, word]
            else:
                runs.append([] if starts and not _acronym(word[0]) else [word])
            open_, links = True, []
        else:
            open_ = bool(joined and runs[-1] and word[0] in _LINKS)
            links = [*links, word] if open_ else []
    return runs


def _steps(text: str, words: Mentions) -> Iterator[tuple[re.Match[str] | None, str, re.Match[str]]]:
    """Each word with the previous one and the text between them."""
    for before, word in zip([None, *words], words, strict=False):
        yield before, text[before.end() if before else 0 : word.start()], word


def _acronym(word: str) -> bool:
    return len(word) > 1 and word.isupper()


def _initial(word: str) -> bool:
    """True for ``J`` in ``J. Smith``, but not for the word ``I``."""
    return len(word) == 1 and word.isupper() and word != "I"


def _holds(guess: Entity, entity: Entity) -> bool:
    size = len(entity)
    return any(guess[i : i + size] == entity for i in range(len(guess) - size + 1))


@lru_cache(maxsize=1)
def _pipeline() -> Any:  # noqa: ANN401
    return importlib.import_module("spacy").load(_MODEL)
