"""Leakage by round, with utility on the second axis."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from experiments.findings import CURVES, OTHER_CLIENT, PRIOR_ONLY, Leakage, Result, Section
from experiments.labels import describe, title
from experiments.results import attack_name

if TYPE_CHECKING:
    from matplotlib.axes import Axes

INK = "#1b1b1f"
COLOURS = (INK, "#d55e00", "#0072b2", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
"""Okabe and Ito's palette, legible without colour vision; markers tell the lines apart as well."""
STROKES = tuple(zip(COLOURS, "osD^vPX", strict=True))
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "text.parse_math": False,
    "font.family": "DejaVu Sans",
    "font.size": 9.0,
    "text.color": INK,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.spines.top": False,
}


@dataclass(frozen=True, slots=True)
class Figure:
    """One panel: an attack, its defenses, the rounds.

    Attributes:
        name: file name without its ending.
        caption: what it shows, in words.
        svg: an ``<svg>`` element; its ink is ``INK``, so that a page can set another.
    """

    name: str
    caption: str
    svg: str
    png: bytes


def curves(section: Section, stem: str) -> list[Figure]:
    """A panel for each attack, setting and metric that was observed in two rounds or more.

    Where there are probes, they are drawn and the clients are not: only their rows are the same in
    each round.
    """
    panels: dict[tuple[str, str], list[Result]] = {}
    for result in section.results:
        if not result.is_null and len(result.rounds.get(section.main, ())) > 1:
            name = attack_name(section, result)
            panels.setdefault((result.setting, name), []).append(result)
    found = []
    for number, ((_, attack), results) in enumerate(panels.items(), 1):
        drawn = [result for result in results if result.probe != "none"] or results
        for metric in CURVES[section.modality]:
            if all(len(result.rounds.get(metric, ())) > 1 for result in drawn):
                more = "" if metric == section.main else f"-{metric.replace('_', '-')}"
                found.append(_figure(section, f"{stem}-{number}{more}", attack, metric, drawn))
    return found


def _figure(section: Section, name: str, attack: str, metric: str, results: list[Result]) -> Figure:
    utility, setting = section.utility_name, results[0].setting
    whose = "examples" if results[0].probe == "none" else "probes"
    caption = (
        f"{attack}{f', {setting}' if setting else ''}: mean {title(metric)} of the {whose} "
        "of each round with its 95 % interval"
        f"{f', and {title(utility)} on held-out rows' if utility else ''}."
    )
    heading = f"{attack}\n{setting}" if setting else attack
    return panel(
        name, caption, heading, lambda axes: _draw(axes, section, metric, results, utility)
    )


def panel(
    name: str,
    caption: str,
    heading: str,
    draw: Callable[[Axes], None],
    size: tuple[float, float] = (4.2, 3.5),
    *,
    legend: bool = True,
) -> Figure:
    """A figure of one pair of axes, in inches; equal drawings give equal bytes."""
    import matplotlib as mpl
    from matplotlib.figure import Figure as Canvas

    svg, png = io.StringIO(), io.BytesIO()
    with mpl.rc_context(STYLE | {"svg.hashsalt": name}):
        canvas = Canvas(figsize=size, layout="constrained")
        axes = canvas.add_subplot()
        draw(axes)
        axes.set_title(heading, fontsize=10, fontweight="bold", loc="left")
        if legend:
            canvas.legend(
                loc="outside lower center", ncols=2, frameon=False, fontsize=8.5, handlelength=2.4
            )
        canvas.savefig(svg, format="svg", transparent=True, metadata={"Date": None})
        canvas.savefig(png, format="png", dpi=200, facecolor="white", metadata={"Software": None})
    text = svg.getvalue()
    return Figure(name, caption, text[text.index("<svg") :], png.getvalue())


def _draw(
    axes: Axes, section: Section, metric: str, results: list[Result], utility: str | None
) -> None:
    from matplotlib.ticker import MaxNLocator

    second = axes.twinx() if utility else None
    # A defense has the same colour in every panel.
    defenses = [place for place in section.places if place[0] == results[0].setting]
    strokes = {place: STROKES[i % len(STROKES)] for i, place in enumerate(defenses)}
    for result in results:
        colour, marker = strokes[result.place]
        label = _short(result, results)
        _curve(axes, result.rounds[metric], colour, marker, label, dashed=result.probe == "fresh")
    for place in dict.fromkeys(result.place for result in results):
        if second is not None and utility:
            measured = [u for u in section.utility if u.place == place]
            y = [_finite(u.values.get(utility)) for u in measured]
            second.plot([u.round for u in measured], y, color=strokes[place][0], lw=0.7)
            second.set_ylabel(f"{title(utility)}, thin line")
    for result in {result.probe: result for result in reversed(results)}.values():
        null = section.null(result, PRIOR_ONLY) or section.null(result, OTHER_CLIENT)
        if null is not None and metric in null.rounds:
            at = null.rounds[metric]
            source = title(null.attack if null.control == "none" else null.control)
            label = _probed(f"null: {source}", null)
            means = [point.mean for point in at.values()]
            style = "-." if null.probe == "fresh" else ":"
            axes.plot(list(at), means, color=INK, alpha=0.55, ls=style, lw=1.3, label=label)
    unit = next(iter(results[0].rounds[metric].values())).unit
    if unit == "1":  # a share: panels of one page compare
        axes.set_ylim(-0.04, 1.04)
    axes.set_xlabel("round")
    axes.set_ylabel(f"{title(metric)}{'' if unit == '1' else f' ({unit})'}")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(axis="y", color=INK, alpha=0.12, linewidth=0.6)


def _curve(
    axes: Axes, rounds: dict[int, Leakage], colour: str, marker: str, label: str, *, dashed: bool
) -> None:
    x, points = list(rounds), list(rounds.values())
    low, high = [_finite(p.low) for p in points], [_finite(p.high) for p in points]
    axes.fill_between(x, low, high, color=colour, alpha=0.08 if dashed else 0.16, linewidth=0)
    axes.plot(
        x,
        [_finite(point.mean) for point in points],
        color=colour,
        linestyle=(0, (4, 2)) if dashed else "-",
        marker=marker,
        markerfacecolor="none" if dashed else colour,
        markersize=7.5 if dashed else 4.5,
        linewidth=1.8,
        label=label,
    )


def _finite(value: float | None) -> float:
    """A diverged model or a missing interval leaves a gap in the line."""
    return value if value is not None and math.isfinite(value) else math.nan


def _short(result: Result, others: Iterable[Result]) -> str:
    """The defense's name, its options where two defenses share the name, and the kind of probe."""
    places = {other.place for other in others if other.defense == result.defense}
    name = title(result.defense)
    name = describe(name, result.defense_options) if len(places) > 1 else name
    return _probed(name, result)


def _probed(label: str, result: Result) -> str:
    return label if result.probe == "none" else f"{label}, {result.probe} rows"
