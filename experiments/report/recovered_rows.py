"""Private rows that an attack has recovered up to each round, over all clients."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pandas as pd

from experiments.analysis.findings import TaskFindings
from experiments.analysis.frames import ATTACK, PLACE, frame
from experiments.analysis.keys import DefenseInSetting
from experiments.report.figures import Figure, by_round, frame_shares, panel, strokes
from experiments.report.naming import attack_label, named_place, place_of, placed
from experiments.report.tables import Number, Table, Value
from experiments.stages.coverage import Coverage
from fedsim.records import AttackKey

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COUNTS = ("used", "recovered", "exact", "false")


@dataclass(frozen=True, slots=True)
class RecoveredRows:
    """What one attack knows of all clients after a round; the counts are those of ``Coverage``."""

    place: DefenseInSetting
    attacker: AttackKey
    round: int
    used: int
    recovered: int
    exact: int
    false: int


def unions(section: TaskFindings, coverages: Iterable[Coverage]) -> list[RecoveredRows]:
    """Sums over clients and seeds, by defense, attack and round.

    A client that sits a round out counts with its latest round: what is known of it stays known.
    """
    places = section.by_cell
    here = [row for row in coverages if row.cell in places]
    owners = pd.DataFrame([places[row.cell] for row in here], columns=PLACE)
    coverage = frame(here, Coverage).join(owners)
    groups = {
        (DefenseInSetting(*place), AttackKey(attack, options, bool(adaptive))): part
        for (*place, attack, options, adaptive), part in coverage.groupby([*PLACE, *ATTACK])
    }
    shown = [(result.place, result.attacker) for result in section.results if not result.is_control]
    return [union for key in shown if key in groups for union in _by_round(*key, groups[key])]


def _by_round(
    place: DefenseInSetting, attacker: AttackKey, coverage: pd.DataFrame
) -> Iterable[RecoveredRows]:
    ordered = coverage.sort_values("round", kind="stable")
    for number in sorted(set(coverage["round"].tolist())):
        so_far = ordered[ordered["round"] <= number]
        latest = so_far.drop_duplicates(["cell", "client"], keep="last")
        counts = {name: int(latest[name].sum()) for name in _COUNTS}
        yield RecoveredRows(place, attacker, number, **counts)


def union_table(section: TaskFindings, recovered: Sequence[RecoveredRows]) -> Table:
    """One row per attack, defense and round, for attacks that were exact at least once."""
    rows: tuple[dict[str, Value], ...] = tuple(
        {
            **placed(known.place),
            "attack": attack_label(section, known.attacker),
            "round": known.round,
            "used": known.used,
            "exact": known.exact,
            "share": Number(known.exact / known.used, "1"),
            "exact and certified": known.recovered,
            "false certificates": known.false,
        }
        for known in _exact_once(recovered)
    )
    caption = (
        "Distinct private rows that the clients have used up to each captured round, how many of "
        "them the attack has recovered exactly, and how many of these it also certified: "
        f"{place_of(section)}."
    )
    return Table("coverage", caption, rows)


def union_figures(
    section: TaskFindings, recovered: Sequence[RecoveredRows], stem: str
) -> list[Figure]:
    """A panel per attack and setting with rows recovered exactly and two rounds or more."""
    exact, drawn = _exact_once(recovered), list[Figure]()
    for setting, attacker in dict.fromkeys((rows.place.setting, rows.attacker) for rows in exact):
        mine = [
            rows for rows in exact if (rows.place.setting, rows.attacker) == (setting, attacker)
        ]
        if len({rows.round for rows in mine}) > 1:
            label = attack_label(section, attacker)
            drawn.append(_figure(section, f"{stem}-{len(drawn) + 1}", setting, label, mine))
    return drawn


def _exact_once(recovered: Sequence[RecoveredRows]) -> list[RecoveredRows]:
    exact = {(rows.place, rows.attacker) for rows in recovered if rows.exact}
    return [rows for rows in recovered if (rows.place, rows.attacker) in exact]


def _figure(
    section: TaskFindings, name: str, setting: str, attack: str, recovered: Sequence[RecoveredRows]
) -> Figure:
    style = strokes(section.places)
    caption = (
        f"{attack}{f', {setting}' if setting else ''}: share of the rows used so far that it has "
        "recovered exactly in at least one round; dashed: those that it also certified."
    )

    def draw(axes: Axes) -> None:
        for place in dict.fromkeys(rows.place for rows in recovered):
            colour, marker = style[place].colour, style[place].marker
            mine = [rows for rows in recovered if rows.place == place]
            x = [rows.round for rows in mine]
            label = named_place(place)[1]
            axes.plot(x, [u.exact / u.used for u in mine], color=colour, marker=marker, label=label)
            if any(rows.recovered for rows in mine):
                axes.plot(x, [u.recovered / u.used for u in mine], color=colour, ls=(0, (4, 2)))
        frame_shares(axes)
        by_round(axes, "share of used rows recovered")

    return panel(name, caption, f"{attack}\n{setting}" if setting else attack, draw)
