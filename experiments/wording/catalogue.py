"""The catalogue of sentences: each by its reason, in ``sentences.toml``."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any


@dataclass(frozen=True, slots=True)
class Said:
    """A sentence by its reason, with the facts that it takes; as text it is the catalogue's."""

    reason: str
    facts: Mapping[str, object]

    def __str__(self) -> str:
        return sentence(self.reason, **self.facts)


def say(reason: str, **facts: object) -> Said:
    """The sentence of a reason, to be told by it."""
    return Said(reason, facts)


def sentence(reason: str, **facts: object) -> str:
    """The sentence of a reason such as ``words.all``, with its facts.

    Raises:
        KeyError: there is no such reason, or a fact that it takes is missing.
    """
    return sentences()[reason].format(**facts)


@cache
def sentences() -> dict[str, str]:
    """Every sentence by ``<section>.<reason>``, in the order of the file."""
    return {
        f"{section}.{reason}": words
        for section, reasons in _sections().items()
        for reason, words in reasons.items()
        if isinstance(words, str)
    }


def terms() -> dict[str, list[str]]:
    """Terms to define: a pattern of pages that need it, and the definition."""
    return dict(_sections()["terms"])


def short_terms() -> dict[str, str]:
    """Terms and what a reader has to know of them where they first occur."""
    return dict(_sections()["short"])


@cache
def _sections() -> dict[str, Any]:
    text = files("experiments.wording").joinpath("sentences.toml").read_text("utf-8")
    return tomllib.loads(text)
