"""Utility against leakage: a marker for each defense, the Pareto front and the null baseline."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from experiments.analysis.evidence import Verdict
from experiments.analysis.findings import UTILITY, TaskFindings
from experiments.analysis.keys import DefenseInSetting
from experiments.report.figures import (
    INK,
    Figure,
    figure,
    frame_decibels,
    frame_shares,
    head,
    legend_beside,
    strokes,
)
from experiments.report.naming import name_of, null_of, reached, unit_of_main, useful
from experiments.report.tables import Number
from experiments.wording.names import title
from fedsim.records import OTHER_CLIENT, PRIOR_ONLY

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

SIZE = (8.4, 4.6)


@dataclass(frozen=True, slots=True)
class Spot:
    """Where a defense stands in the picture."""

    place: DefenseInSetting
    use: Number
    leak: Number
    label: str


def pictures(section: TaskFindings, stem: str) -> list[Figure]:
    """A panel for each setting in which two defenses or more were measured and attacked."""
    drawn: list[Figure] = []
    for setting in dict.fromkeys(verdict.setting for verdict in section.evidence.verdicts):
        verdicts = [verdict for verdict in section.evidence.verdicts if verdict.setting == setting]
        spots = [spot for verdict in verdicts if (spot := _spot(section, verdict))]
        if len(spots) > 1:
            drawn.append(_picture(section, f"{stem}-{len(drawn) + 1}", verdicts, spots))
    return drawn


def _spot(section: TaskFindings, verdict: Verdict) -> Spot | None:
    use, change, spent = useful(section, verdict.place)
    _, leak = reached(section, verdict.strongest)
    if use is None or leak is None or not math.isfinite(use.value):  # a model that diverged
        return None
    if change and change.low is not None and change.high is not None:
        # What seeds share moves all marks alike.
        ends = use.value - change.value + change.low, use.value - change.value + change.high
        use = Number(use.value, use.unit, *ends)
    else:
        use = Number(use.value, use.unit)
    label = name_of(section, verdict)
    return Spot(verdict.place, use, leak, f"{label}, ε = {spent.both}" if spent else label)


def _picture(
    section: TaskFindings, name: str, verdicts: list[Verdict], spots: list[Spot]
) -> Figure:
    setting, utility = verdicts[0].setting, title(section.utility_name or "")
    caption = (
        f"{f'{setting}: ' if setting else ''}mean {title(section.main)} of the strongest attack on "
        f"each defense against {utility} at the end, with 95 % intervals, that of {utility} of its "
        "change to no defense over the same seeds. The best "
        "defense is at the bottom right. On the Pareto front stand the defenses that no other "
        "beats in both means."
    )
    floor = _floor(section, verdicts)

    def draw(canvas: Canvas) -> None:
        axes = canvas.add_subplot()
        _draw(axes, section, spots, floor)
        head(axes, f"Utility and leakage{f', {setting}' if setting else ''}")
        legend_beside(canvas)

    return figure(name, caption, draw, SIZE)


def _floor(section: TaskFindings, verdicts: list[Verdict]) -> tuple[float, str] | None:
    """The null baseline, the mean over the defenses."""
    for kind in (PRIOR_ONLY, OTHER_CLIENT):
        floors = [null_of(section, verdict, kind) for verdict in verdicts]
        known = [floor.value for floor in floors if floor]
        if known:
            return sum(known) / len(known), f"blind guess: {title(kind)}"
    return None


def front(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The points (utility, leakage) that none beats, by utility; the more utility, the better."""
    return sorted(
        point
        for point in set(points)
        if not any(
            other != point and other[0] >= point[0] and other[1] <= point[1] for other in points
        )
    )


def draw_front(axes: Axes, points: Sequence[tuple[float, float]]) -> None:
    """The front as a broad grey line."""
    axes.plot(
        [utility for utility, _ in points],
        [leak for _, leak in points],
        color=INK,
        alpha=0.18,
        linewidth=5,
        solid_capstyle="round",
        solid_joinstyle="round",
        marker="o",
        markersize=15,
        markeredgewidth=0,
        label="Pareto front",
        zorder=1,
    )


def _bar(number: Number) -> list[list[float]] | None:
    """How far the interval reaches below and above; None where there is none."""
    if number.low is None or number.high is None:
        return None
    return [[number.value - number.low], [number.high - number.value]]


def _draw(
    axes: Axes, section: TaskFindings, spots: list[Spot], floor: tuple[float, str] | None
) -> None:
    falling = section.utility_name is not None and UTILITY[section.utility_name] == "lower"
    sign = -1.0 if falling else 1.0
    best = front([(sign * spot.use.value, spot.leak.value) for spot in spots])
    draw_front(axes, [(sign * utility, leak) for utility, leak in best])
    style = strokes([spot.place for spot in spots])
    for spot in spots:
        axes.errorbar(
            [spot.use.value],
            [spot.leak.value],
            xerr=_bar(spot.use),
            yerr=_bar(spot.leak),
            color=style[spot.place].colour,
            marker=style[spot.place].marker,
            linestyle="none",
            elinewidth=0.9,
            capsize=2,
            markersize=6,
            label=spot.label,
        )
    if floor is not None:
        axes.axhline(floor[0], color=INK, alpha=0.55, ls=":", lw=1.3, label=floor[1])
    if falling:
        axes.invert_xaxis()
    unit = unit_of_main(section)
    if unit == "1":
        frame_shares(axes, 0.06)
    axes.margins(x=0.1, y=0.1)
    if unit == "dB":
        frame_decibels(axes)
    axes.set_xlabel(f"{title(section.utility_name or '')} at the end")
    axes.set_ylabel(f"{title(section.main)}{'' if unit == '1' else f' ({unit})'}")
    axes.grid(color=INK, alpha=0.12, linewidth=0.6)
