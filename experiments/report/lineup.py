"""The same victims side by side: the truth, and what was guessed under each defense."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from experiments.analysis.evidence import Verdict
from experiments.analysis.findings import TaskFindings
from experiments.report.gallery import Example, choose
from experiments.report.results import attack_label
from experiments.wording.defense_names import defense_name
from fedsim.capture import CaptureKey
from fedsim.cell import CellConfig

SHOWN = 3
Position: TypeAlias = tuple[int, CaptureKey, int]
"""Seed, round with client, and position in the client's batch."""


@dataclass(frozen=True, slots=True)
class Column:
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
    truth: Example
    guesses: tuple[Example | None, ...]


@dataclass(frozen=True, slots=True)
class Lineup:
    """Some victims of one setting under every defense, from the most to the least leaked.

    Attributes:
        ranked: the defense under which the victims were ranked.
    """

    setting: str
    ranked: str
    columns: tuple[Column, ...]
    lines: tuple[Line, ...]


def lineups(
    section: TaskFindings, examples: Sequence[Example], cells: Mapping[str, CellConfig]
) -> list[Lineup]:
    """One for each setting with a guess to show, no defense first.

    Args:
        section: what was found.
        examples: of any section.
        cells: the cells of this section by name.
    """
    mine = [example for example in examples if example.cell in cells]
    verdicts = section.evidence.verdicts
    found = []
    for setting in dict.fromkeys(verdict.setting for verdict in verdicts):
        here = [verdict for verdict in verdicts if verdict.setting == setting]
        lineup = _lineup(section, here, mine, cells)
        if lineup is not None:
            found.append(lineup)
    return found


def _lineup(
    section: TaskFindings,
    verdicts: Sequence[Verdict],
    examples: Sequence[Example],
    cells: Mapping[str, CellConfig],
) -> Lineup | None:
    ordered = sorted(verdicts, key=lambda verdict: verdict.defense != "none")
    places = section.by_cell
    columns, guessed = [], []
    for verdict in ordered:
        attacker = verdict.strongest.attacker if verdict.strongest else None
        name = defense_name(verdict.defense, verdict.defense_options)
        columns.append(Column(name, attack_label(section, attacker)))
        guessed.append(
            {
                (cells[one.cell].seed, one.key, one.index): one
                for one in examples
                if attacker is not None
                and places.get(one.cell) == verdict.place
                and one.attack == attacker.attack
                and json.loads(one.attack_options) == json.loads(attacker.attack_options)
            }
        )
    first = next((i for i, found in enumerate(guessed) if found), None)
    if first is None:
        return None
    positions = {id(one): position for position, one in guessed[first].items()}
    chosen = choose(list(guessed[first].values()), section.main, SHOWN)
    return Lineup(
        setting=ordered[0].setting,
        ranked=columns[first].defense,
        columns=tuple(columns),
        lines=tuple(
            Line(
                label=_label(i, len(chosen), rank, len(guessed[first])),
                truth=example,
                guesses=tuple(_same(example, positions[id(example)], g) for g in guessed),
            )
            for i, (rank, example) in enumerate(chosen)
        ),
    )


def _same(
    truth: Example, position: Position, guessed: Mapping[Position, Example]
) -> Example | None:
    """The guess at this victim; None if the defense changed which example stands there."""
    found = guessed.get(position)
    if found is None:
        return None
    one, other = truth.original, found.original
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return found if one.shape == other.shape and torch.equal(one, other) else None
    return found if one == other else None


def _label(i: int, shown: int, rank: int, total: int) -> str:
    if total == 1:
        return "the only victim"
    what = "most leaked" if i == 0 else "least leaked" if i == shown - 1 else "median"
    return f"{what}, {rank} of {total}"
