"""How many of a private text's named entities were recovered; by spaCy, and by rules without it."""

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

Entity: TypeAlias = tuple[str, ...]
"""The words of an entity, without spaces and signs, which tokenizers move about."""

_MODEL = "en_core_web_sm"
_NAMED = frozenset({"PERSON", "ORG", "GPE", "LOC", "PRODUCT", "EVENT"})


@dataclass(frozen=True)
class EntityRecovery(TextMetric):
    """Share of the private text's distinct entities that stand whole in the guess.

    An entity stands whole where all its words follow one another, with the same capitals; spaces
    and signs between them are ignored. NaN, and no value in the rows, where the private text has no
    entity. This is the rate in the text of Gupta et al. 2022 ("FILM"); their code has the F measure
    of the entities of both texts, and 0 where the private one has none.
    """

    @abstractmethod
    def entities(self, text: str) -> frozenset[Entity]:
        """The distinct entities of a text."""

    @abstractmethod
    def names(self, text: str) -> frozenset[Entity]:
        """Those among them that name a person, organisation, place, product or event."""

    def score(self, guess: Examples, truth: Examples) -> Tensor:
        """In [0, 1], or NaN."""
        rates = [
            self._rate(words(ours), self.entities(theirs))
            for ours, theirs in zip(guess.words, truth.words, strict=True)
        ]
        return torch.tensor(rates, dtype=torch.float64)

    def _rate(self, guess: Entity, wanted: frozenset[Entity]) -> float:
        if not wanted:
            return math.nan
        return sum(_holds(guess, entity) for entity in wanted) / len(wanted)


@dataclass(frozen=True)
class NamedEntityRecovery(EntityRecovery):
    """NERR (Gupta et al. 2022) with the entities, of all types, of spaCy's ``en_core_web_sm``.

    An optional extra. The model was trained on texts with capitals and finds few names in those of
    an uncased vocabulary.
    """

    name: ClassVar[str] = "nerr"
    title: ClassVar[str] = "NERR"

    def available(self) -> str:
        """Empty, or what has to be installed first."""
        if importlib.util.find_spec("spacy") is None:
            return "spaCy is not installed; pip install -e '.[entities]', or take 'nerr_rules'"
        if importlib.util.find_spec(_MODEL) is None:
            return f"its model is missing; python -m spacy download {_MODEL}, or take 'nerr_rules'"
        return ""

    def entities(self, text: str) -> frozenset[Entity]:
        """What spaCy calls an entity."""
        return frozenset(words(found.text) for found in _pipeline()(text).ents) - {()}

    def names(self, text: str) -> frozenset[Entity]:
        """The types that a sentence needs one of to be among FILM's."""
        found = [entity for entity in _pipeline()(text).ents if entity.label_ in _NAMED]
        return frozenset(words(entity.text) for entity in found) - {()}


@dataclass(frozen=True)
class RuledEntityRecovery(EntityRecovery):
    """NERR with entities found by rules, the stand-in for ``nerr`` that needs no model.

    Not comparable with ``nerr``, hence a name of its own. An entity is

    - a run of capitalised words, joined by ``of``, ``de`` and the like, without its first word if
      that begins a sentence, since its capital then tells nothing; not a run of single letters;
    - a word in capitals of two letters or more, at the start of a sentence too;
    - a number, whole (``1,000`` and ``10:30`` are one), with a month beside it a date;
    - a weekday, or a month other than ``may`` and ``march``;
    - an address of electronic mail.

    A text without a small letter has only the last three. So has one from an uncased vocabulary:
    its names are not found, and a text that has nothing else has no value.
    """

    name: ClassVar[str] = "nerr_rules"
    title: ClassVar[str] = "NERR by rules"

    def entities(self, text: str) -> frozenset[Entity]:
        """What the rules call an entity."""
        mails, dates, names = _split(text)
        return _distinct(dates + names) | {words(mail[0]) for mail in mails}

    def names(self, text: str) -> frozenset[Entity]:
        """Runs of capitalised words, and words in capitals."""
        return _distinct(_split(text)[2])


def words(text: str) -> Entity:
    """The letters and digits of a text, split at everything else."""
    return tuple(_WORD.findall(text))


_WORD = re.compile(r"[^\W_]+")
# Tokenizers put a space on both sides of a sign, or on neither; WikiText writes 1 @,@ 000.
_MAIL = re.compile(r"[\w.+-]+(\s?)@\1\w[\w-]*(?:\1\.\1\w[\w-]*)+?(?![\w-]|\.\w)")
_IN_NAME = re.compile(r"\s*|(\s?)@?['\u2019&-]@?\1")
_IN_NUMBER = re.compile(r"(\s?)@?[.,:/-]@?\1")
_ABBREVIATED = re.compile(r"\s?\.\s*")
_SENTENCE_END = re.compile(r"[.!?\n]|[:,]\s*[\"“]")
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
    """Addresses of mail, dates and numbers, and names."""
    mails = list(_MAIL.finditer(text))
    rest = [
        word
        for word in _WORD.finditer(text)
        if not any(mail.start() <= word.start() < mail.end() for mail in mails)
    ]
    dates = _dates(text, rest)
    dated = {word.start() for run in dates for word in run}
    return mails, dates, _names(text, [word for word in rest if word.start() not in dated])


def _distinct(runs: list[Mentions]) -> frozenset[Entity]:
    found = {tuple(word[0] for word in run) for run in runs}
    return frozenset(e for e in found if any(len(word) > 1 or word.isdigit() for word in e))


def _dates(text: str, found: Mentions) -> list[Mentions]:
    """Numbers, with a month beside them, and the names of days and months."""
    runs: list[Mentions] = []
    open_ = False  # whether the last run ends right before this word
    for before, gap, word in _steps(text, found):
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


def _names(text: str, found: Mentions) -> list[Mentions]:
    """Runs of capitalised words; an empty one where only the start of a sentence has a capital."""
    runs: list[Mentions] = []
    if not any(letter.islower() for letter in text):
        return runs
    open_, links = False, Mentions()
    for before, gap, word in _steps(text, found):
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


def _steps(text: str, found: Mentions) -> Iterator[tuple[re.Match[str] | None, str, re.Match[str]]]:
    """Each word with the one before it and what stands between them."""
    for before, word in zip([None, *found], found, strict=False):
        yield before, text[before.end() if before else 0 : word.start()], word


def _acronym(word: str) -> bool:
    return len(word) > 1 and word.isupper()


def _initial(word: str) -> bool:
    """``J`` of ``J. Smith``; ``I`` is a word."""
    return len(word) == 1 and word.isupper() and word != "I"


def _holds(guess: Entity, entity: Entity) -> bool:
    size = len(entity)
    return any(guess[i : i + size] == entity for i in range(len(guess) - size + 1))


@lru_cache(maxsize=1)
def _pipeline() -> Any:  # noqa: ANN401
    return importlib.import_module("spacy").load(_MODEL)
