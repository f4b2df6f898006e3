"""Leakage by round, with utility on the second axis."""

from __future__ import annotations

import io
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from experiments.findings import OTHER_CLIENT, PRIOR_ONLY, Leakage, Result, Section
from experiments.labels import describe, title

if TYPE_CHECKING:
    from matplotlib.axes import Axes

INK = "#1b1b1f"
COLOURS = (INK, "#d55e00", "#0072b2", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
"""Okabe and Ito's palette, legible without colour vision; markers tell the lines apart as well."""
MARKERS = "osD^vPX"
UTILITY = ("mcc", "accuracy", "perplexity", "loss")
"""Which utility the second axis shows: the first of these that was measured."""


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
    """A panel for each attack and setting that was observed in two rounds or more."""
    panels: dict[tuple[str, str], list[Result]] = {}
    for result in section.results:
        if not result.is_null and section.main in result.rounds:
            panels.setdefault((result.setting, result.attack), []).append(result)
    return [
        _panel(section, f"{stem}-{number}", results)
        for number, results in enumerate(panels.values(), 1)
        if len({at for result in results for at in result.rounds[section.main]}) > 1
    ]


def _panel(section: Section, name: str, results: list[Result]) -> Figure:
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as Canvas
    from matplotlib.ticker import MaxNLocator

    metric, attack, setting = section.main, results[0].attack, results[0].setting
    style: dict[Any, Any] = {
        "svg.hashsalt": name,
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
    with mpl.rc_context(style):
        canvas = Canvas(figsize=(4.2, 3.4), layout="constrained")
        FigureCanvasAgg(canvas)
        left = canvas.add_subplot()
        utility = _utility_name(section)
        right = left.twinx() if utility else None
        for i, result in enumerate(results):
            colour, marker = COLOURS[i % len(COLOURS)], MARKERS[i % len(MARKERS)]
            label = _short(result, results)
            _curve(left, result.rounds[metric], colour, marker, label)
            if right is not None and utility:
                measured = [u for u in section.utility if u.place == result.place]
                x = [u.round for u in measured]
                y = [u.values.get(utility, math.nan) for u in measured]
                right.plot(x, y, color=colour, linestyle=(0, (4, 3)), linewidth=1.0)
        null = section.null(results[0], PRIOR_ONLY) or section.null(results[0], OTHER_CLIENT)
        if null is not None and metric in null.rounds:
            at = null.rounds[metric]
            left.plot(
                list(at),
                [_finite(point.mean) for point in at.values()],
                color=INK,
                alpha=0.55,
                linestyle=":",
                linewidth=1.6,
                label=f"null: {title(null.attack if null.control == 'none' else null.control)}",
            )
        unit = next(iter(results[0].rounds[metric].values())).unit
        left.set_xlabel("round")
        left.set_ylabel(f"{title(metric)}{'' if unit == '1' else f' ({unit})'}, solid")
        if right is not None and utility:
            right.set_ylabel(f"{title(utility)}, dashed")
        left.xaxis.set_major_locator(MaxNLocator(integer=True))
        left.grid(axis="y", color=INK, alpha=0.12, linewidth=0.6)
        title_text = title(attack) + (f"\n{setting}" if setting else "")
        left.set_title(title_text, fontsize=10, fontweight="bold", loc="left", color=INK)
        canvas.legend(
            loc="outside lower center", ncols=2, frameon=False, fontsize=8.5, handlelength=1.6
        )
        svg, png = io.StringIO(), io.BytesIO()
        canvas.savefig(svg, format="svg", transparent=True, metadata={"Date": None})
        canvas.savefig(png, format="png", dpi=200, facecolor="white")
    text = svg.getvalue()
    caption = (
        f"{title(attack)}: mean {title(metric)} of the examples of each round, with its 95 % "
        f"interval{f', and {title(utility)} on held-out rows' if utility else ''}"
        f"{f'; {setting}' if setting else ''}."
    )
    return Figure(name, caption, text[text.index("<svg") :], png.getvalue())


def _curve(axes: Axes, rounds: dict[int, Leakage], colour: str, marker: str, label: str) -> None:
    x, points = list(rounds), list(rounds.values())
    low, high = [_finite(p.low) for p in points], [_finite(p.high) for p in points]
    axes.fill_between(x, low, high, color=colour, alpha=0.16, linewidth=0)
    axes.plot(
        x,
        [_finite(point.mean) for point in points],
        color=colour,
        marker=marker,
        markersize=4.5,
        linewidth=1.8,
        label=label,
    )


def _finite(value: float) -> float:
    """An exact reconstruction has an infinite PSNR, which no axis can hold."""
    return value if math.isfinite(value) else math.nan


def _utility_name(section: Section) -> str | None:
    measured = {name for utility in section.utility for name in utility.values}
    return next((name for name in UTILITY if name in measured), None)


def _short(result: Result, others: Iterable[Result]) -> str:
    """The defense's name; with its options where two defenses share the name."""
    twins = sum(other.defense == result.defense for other in others)
    name = title(result.defense)
    return describe(name, result.defense_options) if twins > 1 else name
