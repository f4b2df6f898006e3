"""The catalogue of sentences: each by its reason, in ``sentences.toml``."""

from __future__ import annotations

import tomllib
from functools import cache
from importlib.resources import files


def sentence(reason: str, **facts: object) -> str:
    """The sentence of a reason such as ``words.all``, with its facts.

    Raises:
        KeyError: there is no such reason, or a fact that it takes is missing.
    """
    return sentences()[reason].format(**facts)


@cache
def sentences() -> dict[str, str]:
    """Every sentence by ``<section>.<reason>``."""
    text = files("experiments.wording").joinpath("sentences.toml").read_text("utf-8")
    sections = tomllib.loads(text)
    return {
        f"{section}.{reason}": words
        for section, reasons in sections.items()
        for reason, words in reasons.items()
    }


def texts(section: str) -> dict[str, str]:
    """The sentences of a section by reason, in the order of the file."""
    return {
        reason.partition(".")[2]: words
        for reason, words in sentences().items()
        if reason.startswith(f"{section}.")
    }
