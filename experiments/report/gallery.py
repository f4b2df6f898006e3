"""Private examples beside what an attack made of them; only the page shows them."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Literal, TypeAlias

from experiments.analysis.findings import TaskFindings
from experiments.report.naming import attack_label
from experiments.stages.gallery import SHOWN, Shown, ranks
from experiments.wording.defense_names import defense_name
from experiments.wording.names import title
from fedsim.visible import visible

Mark: TypeAlias = Literal["missed", "word", "run"]


@dataclass(frozen=True, slots=True)
class Strip:
    """Examples of one attack in one place, from the most to the least leaked.

    Attributes:
        total: how many there are.
        chosen: those shown.
    """

    attack: str
    defense: str
    metric: str
    total: int
    chosen: list[Shown]


def strips(section: TaskFindings, examples: Sequence[Shown]) -> list[Strip]:
    """One strip for each attack and place of the section, in its order."""
    places = {cell: result.place for result in section.results for cell in result.cells}
    groups: dict[tuple[int, str, str], list[Shown]] = {}
    for example in examples:
        if example.cell in places:
            number = section.places.index(places[example.cell])
            groups.setdefault((number, example.attack, example.attack_options), []).append(example)
    shown_strips = []
    for (number, attack, given), group in sorted(groups.items()):
        picked = ranks(group[0].total, SHOWN[section.modality])
        setting, defense, options = section.places[number]
        shown_strips.append(
            Strip(
                attack=attack_of(section, attack, given),
                defense=defense_name(defense, options) + (f", {setting}" if setting else ""),
                metric=section.main,
                total=group[0].total,
                chosen=sorted(
                    (example for example in group if example.rank in picked),
                    key=lambda example: example.rank,
                ),
            )
        )
    return shown_strips


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

    Greedy string tiling (Wise 1993) with case ignored: the longest common run is taken first, and
    each word of the guess accounts for one word of the original.
    """
    private = [word.casefold() for word in original]
    guessed: list[str | None] = [word.casefold() for word in guess]
    marks: list[Mark] = ["missed"] * len(private)
    starts: set[int] = set()
    while True:
        length, i, j = _longest_run(private, guessed, marks)
        if length == 0:
            break
        marks[i : i + length] = ["run" if length > 1 else "word"] * length
        guessed[j : j + length] = [None] * length
        starts.add(i)
    pieces: list[tuple[Mark, str]] = []
    for i, (kind, word) in enumerate(zip(marks, original, strict=True)):
        if pieces and pieces[-1][0] == kind and kind != "word" and i not in starts:
            pieces[-1] = (kind, f"{pieces[-1][1]} {word}")
        else:
            pieces.append((kind, word))
    return pieces


def _longest_run(
    private: Sequence[str], guessed: Sequence[str | None], marks: Sequence[Mark]
) -> tuple[int, int, int]:
    """Length and starts of the longest common run of words that no run has taken yet."""
    best = (0, 0, 0)
    ending = [0] * (len(guessed) + 1)
    for i, word in enumerate(private):
        row = [0] * (len(guessed) + 1)
        for j, other in enumerate(guessed):
            if marks[i] == "missed" and word == other:
                row[j + 1] = ending[j] + 1
                if row[j + 1] > best[0]:
                    best = (row[j + 1], i - row[j + 1] + 1, j - row[j + 1] + 1)
        ending = row
    return best
