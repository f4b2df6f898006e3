"""Utility against leakage: a marker for each defense, the Pareto front and the null baseline."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from typing import TYPE_CHECKING, TypeAlias

from experiments.analysis.evidence import Verdict
from experiments.analysis.findings import UTILITY, TaskFindings
from experiments.analysis.tradeoff import DP_SGD
from experiments.report.figures import (
    INK,
    MARKERS,
    Figure,
    family_colour,
    figure,
    frame_decibels,
    frame_shares,
    head,
    legend_beside,
)
from experiments.report.naming import unit_of_main
from experiments.report.numbers import null_of, reached, useful
from experiments.report.tables import Number
from experiments.wording.defense_names import compact, family, strength, varied
from experiments.wording.names import title
from fedsim.records import OTHER_CLIENT, PRIOR_ONLY

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

SIZE = (8.4, 4.6)


@dataclass(frozen=True, slots=True)
class Spot:
    """Where a defense stands in the picture."""

    defense: str
    options: str
    use: Number
    leak: Number
    label: str

    @property
    def utility(self) -> float:
        """At the end of training."""
        return self.use.value


def bar(number: Number) -> tuple[float, float]:
    """How far the interval reaches below and above; nothing where there is none."""
    if number.low is None or number.high is None:
        return 0.0, 0.0
    return number.value - number.low, number.high - number.value


def _bars(numbers: Sequence[Number]) -> list[tuple[float, ...]] | None:
    """Of an axis; None where no number has an interval, as the legend would show one."""
    known = any(number.low is not None for number in numbers)
    return list(zip(*map(bar, numbers), strict=True)) if known else None


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
    use, change, epsilon = useful(section, verdict.place)
    _, leak = reached(section, verdict.strongest)
    if use is None or leak is None or not math.isfinite(use.value):  # a model that diverged
        return None
    members = [
        other.defense_options
        for other in section.evidence.verdicts
        if (other.setting, other.defense) == (verdict.setting, verdict.defense)
    ]
    label = strength(verdict.defense, verdict.defense_options, members, bare=True)
    if verdict.defense == DP_SGD:
        label = f"ε={compact(float(f'{epsilon.value:.3g}'))}" if epsilon else "ε=∞"
    given = verdict.defense_options
    if change and change.low is not None:  # what seeds share moves all marks alike
        below, above = bar(change)
        use = Number(use.value, use.unit, use.value - below, use.value + above)
    else:
        use = Number(use.value, use.unit)
    return Spot(verdict.defense, given, use, leak, label or family(verdict.defense))


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
    heading = f"Utility and leakage{f', {setting}' if setting else ''}"
    floor = _floor(section, verdicts)

    def draw(canvas: Canvas) -> None:
        axes = canvas.add_subplot()
        _draw(axes, section, spots, floor)
        head(axes, heading)
        legend_beside(canvas)
        canvas.draw_without_rendering()  # settles where the points lie
        marks = [
            PlacedMark(
                spot.utility,
                spot.leak.value,
                spot.leak.value - bar(spot.leak)[0],
                spot.leak.value + bar(spot.leak)[1],
                spot.label,
                _colour(spot, spots),
            )
            for spot in spots
        ]
        line = sorted((spot.utility, spot.leak.value) for spot in spots if spot.defense == DP_SGD)
        write_labels(axes, marks, line)

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


def _falling(section: TaskFindings) -> bool:
    """Whether less of the measure of utility is better."""
    return section.utility_name is not None and UTILITY[section.utility_name] == "lower"


def _colour(spot: Spot, spots: Sequence[Spot]) -> str:
    families = dict.fromkeys(spot.defense for spot in spots if spot.defense != "none")
    return family_colour(spot.defense, list(families))


def _draw(
    axes: Axes, section: TaskFindings, spots: list[Spot], floor: tuple[float, str] | None
) -> None:
    families: dict[str, list[Spot]] = {}
    for spot in spots:
        families.setdefault(spot.defense, []).append(spot)
    sign = -1.0 if _falling(section) else 1.0
    best = front([(sign * spot.utility, spot.leak.value) for spot in spots])
    axes.plot(
        [sign * utility for utility, _ in best],
        [leak for _, leak in best],
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
    for number, (defense, members) in enumerate(families.items()):
        by = varied(defense, [spot.options for spot in members])
        line = sorted(members, key=lambda spot: spot.utility)
        axes.errorbar(
            [spot.utility for spot in line],
            [spot.leak.value for spot in line],
            xerr=_bars([spot.use for spot in line]),
            yerr=_bars([spot.leak for spot in line]),
            color=_colour(members[0], spots),
            marker=MARKERS[number % len(MARKERS)],
            linestyle=(0, (3, 2)) if defense == DP_SGD else "none",
            linewidth=0.9,
            elinewidth=0.9,
            capsize=2,
            markersize=6,
            label=f"{family(defense)}, by {by}" if by else family(defense),
        )
    if floor is not None:
        axes.axhline(floor[0], color=INK, alpha=0.55, ls=":", lw=1.3, label=floor[1])
    if _falling(section):
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


FONT = 8.0
WAYS = ((1, 0), (1, 1), (1, -1), (-1, 0), (-1, 1), (-1, -1), (0, 1), (0, -1))
REACHES = (5.0, 12.0, 20.0, 30.0, 42.0)
Position: TypeAlias = tuple[float, float]
Box: TypeAlias = tuple[float, float, float, float]
"""Left, bottom, right and top, in points."""


@dataclass(frozen=True, slots=True)
class PlacedMark:
    """Something to label, in data coordinates: its place and the ends of its interval."""

    x: float
    y: float
    low: float
    high: float
    label: str
    colour: str


def write_labels(axes: Axes, marks: Sequence[PlacedMark], line: Sequence[Position]) -> None:
    """Write each label at the nearest place that covers the least, greedily, in their order.

    Args:
        axes: laid out for good, since places are found in points.
        marks: what is labelled.
        line: corners of a line to keep off.
    """
    frame = axes.get_window_extent()
    edge = _points(axes, frame.x0, frame.y0) + _points(axes, frame.x1, frame.y1)
    taken = _marked(axes, marks) + _along([_at(axes, *corner) for corner in line])
    for mark in marks:
        offset, box = _place(_at(axes, mark.x, mark.y), mark.label, taken, edge)
        taken.append(box)
        axes.annotate(
            mark.label,
            (mark.x, mark.y),
            offset,
            textcoords="offset points",
            ha="center",
            va="center",
            fontsize=FONT,
            color=mark.colour,
        ).set_in_layout(False)


def _points(axes: Axes, x: float, y: float) -> Position:
    """Pixels as points."""
    scale = 72 / axes.figure.dpi
    return float(x) * scale, float(y) * scale


def _at(axes: Axes, x: float, y: float) -> Position:
    """Data coordinates as points."""
    return _points(axes, *axes.transData.transform((x, y)))


def _marked(axes: Axes, marks: Sequence[PlacedMark]) -> list[Box]:
    """What the marks and their intervals cover."""
    boxes = []
    for mark in marks:
        x, y = _at(axes, mark.x, mark.y)
        low, high = _at(axes, mark.x, mark.low)[1], _at(axes, mark.x, mark.high)[1]
        boxes += [(x - 4, y - 4, x + 4, y + 4), (x - 2, low, x + 2, high)]
    return boxes


def _along(corners: Sequence[Position], pieces: int = 30) -> list[Box]:
    """A line as small boxes."""
    boxes = []
    for (x0, y0), (x1, y1) in pairwise(corners):
        for i in range(1, pieces):
            x, y = x0 + (x1 - x0) * i / pieces, y0 + (y1 - y0) * i / pieces
            boxes.append((x - 2, y - 2, x + 2, y + 2))
    return boxes


def _place(at: Position, label: str, taken: Sequence[Box], edge: Box) -> tuple[Position, Box]:
    """Offset of the middle of a label from its mark, and what it covers there."""
    width, height = 0.64 * FONT * len(label) + 2, 1.25 * FONT
    choices = []
    for reach, (right, up) in product(REACHES, WAYS):
        offset = right * (reach + width / 2), up * (reach + height / 2)
        left, bottom = at[0] + offset[0] - width / 2, at[1] + offset[1] - height / 2
        box = (left, bottom, left + width, bottom + height)
        outside = width * height - shared(box, edge)
        covered = sum(shared(box, other) for other in taken)
        choices.append((covered + 3 * outside + reach, offset, box))
    _, offset, box = min(choices, key=lambda choice: choice[0])
    return offset, box


def shared(box: Box, other: Box) -> float:
    """The area that two boxes have in common."""
    width = min(box[2], other[2]) - max(box[0], other[0])
    height = min(box[3], other[3]) - max(box[1], other[1])
    return max(0.0, width) * max(0.0, height)
