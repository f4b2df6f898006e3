"""The same victims side by side: the truth, and what was guessed under each defense."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from experiments.analysis.evidence import Verdict
from experiments.analysis.findings import TaskFindings
from experiments.report.naming import attack_label
from experiments.stages.gallery import LINED_UP, Shown, ranks
from experiments.wording.catalogue import sentence
from experiments.wording.defense_names import defense_name
from fedsim.config.cell import CellConfig


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
