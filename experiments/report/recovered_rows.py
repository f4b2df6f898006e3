"""The share of the used rows that an attack has recovered by each round, over all clients."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from experiments.analysis.findings import TaskFindings
from experiments.analysis.keys import AttackKey, DefenseKey
from experiments.report.figures import INK, Figure, panel, strokes
from experiments.report.naming import attack_label, named_place, place_of
from experiments.report.tables import Number, Table
from experiments.stages.coverage import Coverage

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True, slots=True)
class Union:
    """What one attack knows of all clients of a place after a round; as in ``Coverage``."""

    place: DefenseKey
    attacker: AttackKey
    round: int
    used: int
    recovered: int
    exact: int
    false: int


def unions(section: TaskFindings, found: Iterable[Coverage]) -> list[Union]:
    """Sums over the clients and seeds of a place; who sits a round out keeps what is known."""
    places = section.by_cell
    groups: dict[tuple[DefenseKey, AttackKey], list[Coverage]] = defaultdict(list)
    for one in found:
        if one.cell in places:
            attacker = AttackKey(
                attack=one.attack, attack_options=one.attack_options, adaptive=one.adaptive
            )
            groups[places[one.cell], attacker].append(one)
    shown = [
        (result.place, result.attacker)
        for result in section.results
        if not result.is_control and (result.place, result.attacker) in groups
    ]
    return [union for key in shown for union in _by_round(*key, groups[key])]


def _by_round(place: DefenseKey, attacker: AttackKey, found: Sequence[Coverage]) -> Iterable[Union]:
    for number in sorted({one.round for one in found}):
        latest: dict[tuple[str, int], Coverage] = {}
        for one in sorted(found, key=lambda one: one.round):
            if one.round <= number:
                latest[one.cell, one.client] = one
        known = latest.values()
        yield Union(
            place=place,
            attacker=attacker,
            round=number,
            used=sum(one.used for one in known),
            recovered=sum(one.recovered for one in known),
            exact=sum(one.exact for one in known),
            false=sum(one.false for one in known),
        )


def union_table(section: TaskFindings, found: Sequence[Union]) -> Table:
    """One row an attack, defense and round; attacks that never were exact are left out."""
    kept = _exact_once(found)
    return Table(
        "coverage",
        "Distinct private rows that the attack has recovered exactly up to each captured round, "
        "of those that the clients used so far: all of them, and those that it certified: "
        f"{place_of(section)}.",
        (
            *("setting", "defense", "attack", "round", "used"),
            *("exact", "share", "exact and certified", "false certificates"),
        ),
        tuple(
            (
                *named_place(one.place),
                attack_label(section, one.attacker),
                *(one.round, one.used, one.exact, Number(one.exact / one.used, "1")),
                *(one.recovered, one.false),
            )
            for one in kept
        ),
    )


def union_figures(section: TaskFindings, found: Sequence[Union], stem: str) -> list[Figure]:
    """A panel for each attack and setting that recovered rows in a run of two rounds or more."""
    panels: dict[tuple[str, AttackKey], list[Union]] = defaultdict(list)
    for one in _exact_once(found):
        panels[one.place.setting, one.attacker].append(one)
    drawn: list[Figure] = []
    for (setting, attacker), unions_ in panels.items():
        if len({one.round for one in unions_}) > 1:
            label = attack_label(section, attacker)
            drawn.append(_figure(section, f"{stem}-{len(drawn) + 1}", setting, label, unions_))
    return drawn


def _exact_once(found: Sequence[Union]) -> list[Union]:
    exact = {(one.place, one.attacker) for one in found if one.exact}
    return [one for one in found if (one.place, one.attacker) in exact]


def _figure(
    section: TaskFindings, name: str, setting: str, attack: str, found: Sequence[Union]
) -> Figure:
    style = strokes(section.places)
    caption = (
        f"{attack}{f', {setting}' if setting else ''}: share of the rows used so far that it has "
        "recovered exactly in at least one round; dashed, those that it certified."
    )

    def draw(axes: Axes) -> None:
        from matplotlib.ticker import MaxNLocator

        for place in dict.fromkeys(one.place for one in found):
            colour, marker = style[place].colour, style[place].marker
            mine = [one for one in found if one.place == place]
            x = [one.round for one in mine]
            label = named_place(place)[1]
            axes.plot(x, [u.exact / u.used for u in mine], color=colour, marker=marker, label=label)
            if any(one.recovered for one in mine):
                axes.plot(x, [u.recovered / u.used for u in mine], color=colour, ls=(0, (4, 2)))
        axes.set_ylim(-0.04, 1.04)
        axes.set_xlabel("round")
        axes.set_ylabel("share of used rows recovered")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.grid(axis="y", color=INK, alpha=0.12, linewidth=0.6)

    return panel(name, caption, f"{attack}\n{setting}" if setting else attack, draw)
