"""Private examples beside what an attack made of them; only the page shows them."""

from __future__ import annotations

import base64
import json
from collections import Counter
from collections.abc import Sequence
from difflib import SequenceMatcher
from html import escape
from itertools import groupby
from typing import Literal, TypeAlias

from experiments.analysis.findings import TaskFindings
from experiments.report.naming import attack_label
from experiments.wording.names import title
from fedsim.visible import visible

Mark: TypeAlias = Literal["missed", "word", "run"]


def attack_of(section: TaskFindings, attack: str, options: str) -> str:
    """As the tables call it; by its bare name where no row has these options."""
    given = json.loads(options)
    for result in section.results:
        if (result.attack, json.loads(result.attack_options)) == (attack, given):
            return attack_label(section, result.attacker)
    return title(attack)


def data_uri(picture: bytes) -> str:
    """A PNG file, or the lines of a row of a table drawn as one, as a page embeds it."""
    if picture.startswith(_PNG):
        return f"data:image/png;base64,{base64.b64encode(picture).decode()}"
    return f"data:image/svg+xml;base64,{base64.b64encode(_drawn_row(picture).encode()).decode()}"


_PNG = b"\x89PNG"
_LINE, _LETTER = 16, 7.2
"""Pixels of a line, and of a letter of its font."""


def _drawn_row(row: bytes) -> str:
    """An SVG with a line for each column: its name, and its value on the right."""
    lines = [visible(line).partition(": ") for line in row.decode("utf-8", "replace").split("\n")]
    names = max(len(name) for name, _, _ in lines)
    width = _LETTER * (names + 2 + max(len(value) for _, _, value in lines))
    height = _LINE * (len(lines) + 0.5)
    texts = "".join(
        f'<text x="2" y="{_LINE * (i + 1)}">{escape(name)}</text>'
        f'<text x="{width - 2:.0f}" y="{_LINE * (i + 1)}" text-anchor="end">{escape(value)}</text>'
        for i, (name, _, value) in enumerate(lines)
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" '
        f'font-family="monospace" font-size="12"><rect width="100%" height="100%" fill="#fff"/>'
        f"{texts}</svg>"
    )


def words(text: bytes) -> list[str]:
    """The words of a text of the gallery."""
    return text.decode(errors="replace").split(" ") if text else []


def mark(original: Sequence[str], guess: Sequence[str]) -> list[tuple[Mark, str]]:
    """The original cut into runs of words that the guess holds in order, single words, and misses.

    The runs are blocks of ``difflib``, with case ignored; single words also stand elsewhere in the
    guess, each word of which accounts for one word of the original.
    """
    private, guessed = ([word.casefold() for word in words] for words in (original, guess))
    marks: list[tuple[Mark, int]] = [("missed", 0)] * len(private)
    left = Counter(guessed)
    matcher = SequenceMatcher(None, private, guessed, autojunk=False)
    for start, _, size in matcher.get_matching_blocks():
        marks[start : start + size] = [("run" if size > 1 else "word", start)] * size
        left.subtract(private[start : start + size])
    for i, word in enumerate(private):
        if marks[i][0] == "missed" and left[word] > 0:
            marks[i] = "word", i
            left[word] -= 1
    pieces = groupby(zip(marks, original, strict=True), key=lambda pair: pair[0])
    return [(kind, " ".join(word for _, word in run)) for (kind, _), run in pieces]
