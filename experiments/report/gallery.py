"""Private examples beside guesses, and the same victims under each defense; for the page alone."""

import base64
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from html import escape
from itertools import groupby
from typing import Literal, TypeAlias

from experiments.analysis.evidence import Verdict
from experiments.analysis.findings import TaskFindings
from experiments.report.naming import attack_label
from experiments.stages.gallery import LINED_UP, Shown, ranks
from experiments.wording.catalogue import sentence
from experiments.wording.names import defense_name, title
from fedsim.config.cell import CellConfig
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


@dataclass(frozen=True, slots=True)
class LineupColumn:
    """One defense under its strongest attack.

    Attributes:
        attack: empty where no attack could run.
    """

    defense: str
    attack: str


@dataclass(frozen=True, slots=True)
class Line:
    """One victim.

    Attributes:
        label: its rank in words, ``most leaked, 1 of 9``.
        guesses: by column; None where that attack says nothing about this victim.
    """

    label: str
    truth: Shown
    guesses: tuple[Shown | None, ...]


@dataclass(frozen=True, slots=True)
class Lineup:
    """Some victims of one setting under every defense, from the most to the least leaked.

    Attributes:
        ranked: the defense under which the victims were ranked.
    """

    setting: str
    ranked: str
    columns: tuple[LineupColumn, ...]
    lines: tuple[Line, ...]


def lineups(
    section: TaskFindings, examples: Sequence[Shown], cells: Mapping[str, CellConfig]
) -> list[Lineup]:
    """One for each setting with a guess to show, no defense first.

    Args:
        section: what was found.
        examples: of any section.
        cells: the cells of this section by name.
    """
    mine = [example for example in examples if example.cell in cells]
    verdicts = section.evidence.verdicts
    drawn = []
    for setting in dict.fromkeys(verdict.setting for verdict in verdicts):
        here = [verdict for verdict in verdicts if verdict.setting == setting]
        lineup = _lineup(section, here, mine, cells)
        if lineup is not None:
            drawn.append(lineup)
    return drawn


def _lineup(
    section: TaskFindings,
    verdicts: Sequence[Verdict],
    examples: Sequence[Shown],
    cells: Mapping[str, CellConfig],
) -> Lineup | None:
    ordered = sorted(verdicts, key=lambda verdict: verdict.defense != "none")
    places = section.by_cell
    columns, guessed = [], []
    for verdict in ordered:
        attacker = verdict.strongest.attacker if verdict.strongest else None
        name = defense_name(verdict.defense, verdict.defense_options)
        columns.append(LineupColumn(name, attack_label(section, attacker)))
        guessed.append(
            {
                example.position(cells[example.cell].seed): example
                for example in examples
                if attacker is not None
                and places.get(example.cell) == verdict.place
                and example.attack == attacker.attack
                and json.loads(example.attack_options) == json.loads(attacker.attack_options)
            }
        )
    first = next((i for i, by_position in enumerate(guessed) if by_position), None)
    if first is None:
        return None
    total = next(iter(guessed[first].values())).total
    wanted = ranks(total, LINED_UP)
    chosen = sorted(
        (example.rank, position, example)
        for position, example in guessed[first].items()
        if example.rank in wanted
    )
    return Lineup(
        setting=ordered[0].setting,
        ranked=columns[first].defense,
        columns=tuple(columns),
        lines=tuple(
            Line(
                label=_label(i, len(chosen), rank, total, example.blind),
                truth=example,
                guesses=tuple(_same(example, guesses.get(position)) for guesses in guessed),
            )
            for i, (rank, position, example) in enumerate(chosen)
        ),
    )


def _same(truth: Shown, guess: Shown | None) -> Shown | None:
    """The guess at this victim; None if the defense changed which example stands there."""
    return guess if guess is not None and guess.original == truth.original else None


def _label(i: int, shown: int, rank: int, total: int, blind: bool) -> str:
    near = sentence("victim.blind") if blind else ""
    if total == 1:
        return f"the only victim{near}"
    best = "nearest guess" if blind else "most leaked"
    what = best if i == 0 else "least leaked" if i == shown - 1 else "median"
    return f"{what}, {rank} of {total}{near}"
