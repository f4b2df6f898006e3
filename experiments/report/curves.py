"""Leakage by round, a panel for each attack, with the utility of the model below."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import pandas as pd

from experiments.analysis.findings import Leakage, Result, RoundUtility, TaskFindings
from experiments.analysis.keys import DefenseInSetting
from experiments.report.figures import (
    INK,
    Figure,
    Size,
    Stroke,
    by_round,
    figure,
    frame_decibels,
    frame_shares,
    head,
    legend_beside,
    strokes,
)
from experiments.report.naming import attack_name
from experiments.wording.names import defense_name, title
from fedsim.records import OTHER_CLIENT, PRIOR_ONLY

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

COLUMNS = 3
FEW = 8
"""Up to so many rounds each has a marker with its interval; of more, the first, the middle and
the last."""
WIDE = 28
"""Characters of a name that fit over a panel; the options of a longer one have their own line."""
STEADY = 20
"""Up to so many rounds utility is drawn as it is; of more, as a running mean over a tenth."""

Panels = dict[str, list[Result]]
"""Attack -> what it found under each defense."""


class Drawing(NamedTuple):
    """A figure before it is drawn; ``number`` is that of its setting."""

    number: int
    caption: str
    draw: Callable[[Any], None]
    size: Size


def curves(section: TaskFindings, stem: str) -> list[Figure]:
    """A figure for each setting that was observed in two rounds or more, of the main metric.

    Where there are probes, they are drawn and the clients are not: only their rows are the same in
    each round.

    Args:
        section: what was found.
        stem: begins the names.
    """
    return [
        figure(f"{stem}-{number}", caption, draw, size)
        for number, caption, draw, size in drawings(section, section.main)
    ]


def drawings(section: TaskFindings, metric: str) -> list[Drawing]:
    """What ``curves`` draws, of any metric."""
    settings: dict[str, Panels] = {}
    for result in section.results:
        if not result.is_null and len(result.rounds.get(section.main, ())) > 1:
            panels = settings.setdefault(result.setting, {})
            panels.setdefault(attack_name(section, result), []).append(result)
    finished = []
    for number, (setting, panels) in enumerate(settings.items(), 1):
        drawn = {
            attack: [result for result in results if result.probe != "none"] or results
            for attack, results in panels.items()
        }
        shown = {
            attack: results
            for attack, results in drawn.items()
            if all(len(result.rounds.get(metric, ())) > 1 for result in results)
        }
        if shown:
            finished.append(_drawing(section, number, setting, metric, shown))
    return finished


def window(rounds: int) -> int:
    """Over how many rounds utility is averaged: 1, or an odd number near a tenth of them."""
    return 1 if rounds <= STEADY else rounds // 20 * 2 + 1


def running_mean(values: Sequence[float], width: int) -> list[float]:
    """The mean over ``width`` neighbours, over fewer at both ends; NaN stays and is left out."""
    series = pd.Series(values, dtype=float)
    means = series.rolling(width, center=True, min_periods=1).mean()
    return list(means.where(series.notna()))


def smoothed(measured: Sequence[RoundUtility], name: str, width: int) -> list[float]:
    """Utility by round as a running mean; round 0, which is before training, as it is."""
    values = [_finite(point.values.get(name)) for point in measured]
    raw = 1 if measured and measured[0].round == 0 else 0
    return values[:raw] + running_mean(values[raw:], width)


def _drawing(
    section: TaskFindings, number: int, setting: str, metric: str, panels: Panels
) -> Drawing:
    utility = section.utility_name
    first = next(iter(panels.values()))[0]
    whose = "examples" if first.probe == "none" else "probes"
    caption = (
        f"{', '.join(panels)}{f', {setting}' if setting else ''}: mean {title(metric)} of the "
        f"{whose} of each round with its 95 % interval"
        f"{f', and below it {title(utility)} on held-out rows' if utility else ''}."
    )
    columns = min(COLUMNS, len(panels))
    room = columns - len(panels) % columns if len(panels) % columns else columns
    rows = -(-len(panels) // columns)
    below = rows if room == columns else rows - 1  # utility fills the last row, or has its own

    def draw(canvas: Canvas) -> None:
        grid = canvas.add_gridspec(max(rows, below + 1) if utility else rows, columns)
        style = strokes(section.places)
        axes: Any = None
        for place, (attack, results) in enumerate(panels.items()):
            spot = grid[place // columns, place % columns]
            axes = canvas.add_subplot(spot, sharex=axes, sharey=axes)
            _leakage(axes, section, metric, results, style)
            above = attack if len(attack) <= WIDE else attack.replace(" (", "\n(", 1)
            heading = f"{above}\n{setting}" if setting else above
            head(axes, heading)
        if utility:
            curve = canvas.add_subplot(grid[below, columns - room :], sharex=axes)
            places = dict.fromkeys(r.place for results in panels.values() for r in results)
            _utility(curve, section, utility, list(places), style)
        legend_beside(canvas)

    height = 2.75 * (max(rows, below + 1) if utility else rows)
    return Drawing(number, caption, draw, (3.1 * columns + (4.2 if columns == 1 else 2.7), height))


def _leakage(
    axes: Axes,
    section: TaskFindings,
    metric: str,
    results: Sequence[Result],
    style: dict[DefenseInSetting, Stroke],
) -> None:
    rounds = sorted({number for result in results for number in result.rounds[metric]})
    step = (rounds[-1] - rounds[0]) / 100
    places = list(dict.fromkeys(result.place for result in results))
    for result in results:
        number = places.index(result.place)
        shift = step * (number - (len(places) - 1) / 2)  # else intervals hide one another
        _curve(axes, result.rounds[metric], style[result.place], shift, result)
    _nulls(axes, section, metric, results)
    unit = next(iter(results[0].rounds[metric].values())).unit
    if unit == "1":  # a share: panels of one page compare
        frame_shares(axes)
    if unit == "dB":
        frame_decibels(axes)
    by_round(axes, f"{title(metric)}{'' if unit == '1' else f' ({unit})'}")


def _curve(
    axes: Axes, rounds: dict[int, Leakage], stroke: Stroke, shift: float, result: Result
) -> None:
    hollow = result.probe == "fresh"
    numbers, points = list(rounds), list(rounds.values())
    means = [_finite(point.mean) for point in points]
    x = [number + shift for number in numbers]
    last = len(x) - 1
    marked = range(len(x)) if len(x) <= FEW else sorted({0, len(x) // 2, last})
    label = _probed(defense_name(result.defense, result.defense_options), result)
    axes.plot(x, means, color=stroke.colour, lw=1.4, ls=(0, (4, 2)) if hollow else "-")
    axes.errorbar(
        [x[i] for i in marked],
        [means[i] for i in marked],
        yerr=[
            [means[i] - _finite(points[i].low) for i in marked],
            [_finite(points[i].high) - means[i] for i in marked],
        ],
        color=stroke.colour,
        marker=stroke.marker,
        markerfacecolor="none" if hollow else stroke.colour,
        markersize=7 if hollow else 4.5,
        linestyle="none",
        elinewidth=0.9,
        capsize=2,
        label=label,
    )


def _nulls(axes: Axes, section: TaskFindings, metric: str, results: Sequence[Result]) -> None:
    """The baseline of the first defense, for each kind of probe."""
    for result in {result.probe: result for result in reversed(results)}.values():
        null = section.null(result, PRIOR_ONLY) or section.null(result, OTHER_CLIENT)
        if null is not None and metric in null.rounds:
            at = null.rounds[metric]
            source = title(null.attack if null.control == "none" else null.control)
            means = [point.mean for point in at.values()]
            kind = "-." if null.probe == "fresh" else ":"
            label = _probed(f"blind guess: {source}", null)
            axes.plot(list(at), means, color=INK, alpha=0.55, ls=kind, lw=1.3, label=label)


def _utility(
    axes: Axes,
    section: TaskFindings,
    name: str,
    places: Sequence[DefenseInSetting],
    style: dict[DefenseInSetting, Stroke],
) -> None:
    width = 1
    for place in places:
        measured = [point for point in section.utility if point.place == place]
        width = window(len(measured))
        values = smoothed(measured, name, width)
        x = [point.round for point in measured]
        axes.plot(x, values, color=style[place].colour, lw=1.4)
    by_round(axes, title(name))
    head(axes, f"{title(name)}, running mean of {width} rounds" if width > 1 else title(name))


def _finite(value: float | None) -> float:
    """A diverged model or a missing interval leaves a gap in the line."""
    return value if value is not None and math.isfinite(value) else math.nan


def _probed(label: str, result: Result) -> str:
    return label if result.probe == "none" else f"{label}, {result.probe} rows"
