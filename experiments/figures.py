"""Leakage by round, with utility on the second axis."""

from __future__ import annotations

import io
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from experiments.findings import OTHER_CLIENT, PRIOR_ONLY, Leakage, Result, Section
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
        if not result.is_null and len(result.rounds.get(section.main, ())) > 1:
            name = attack_name(section, result)
            panels.setdefault((result.setting, name), []).append(result)
    return [
        _figure(section, f"{stem}-{number}", attack, results)
        for number, ((_, attack), results) in enumerate(panels.items(), 1)
    ]


def _figure(section: Section, name: str, attack: str, results: list[Result]) -> Figure:
    import matplotlib as mpl
    from matplotlib.figure import Figure as Canvas

    utility, setting = _utility_name(section), results[0].setting
    svg, png = io.StringIO(), io.BytesIO()
    with mpl.rc_context(STYLE | {"svg.hashsalt": name}):
        canvas = Canvas(figsize=(4.2, 3.5), layout="constrained")
        axes = canvas.add_subplot()
        _draw(axes, section, results, utility)
        heading = f"{attack}\n{setting}" if setting else attack
        axes.set_title(heading, fontsize=10, fontweight="bold", loc="left")
        canvas.legend(
            loc="outside lower center", ncols=2, frameon=False, fontsize=8.5, handlelength=1.6
        )
        canvas.savefig(svg, format="svg", transparent=True, metadata={"Date": None})
        canvas.savefig(png, format="png", dpi=200, facecolor="white", metadata={"Software": None})
    caption = (
        f"{attack}{f', {setting}' if setting else ''}: mean {title(section.main)} of the examples "
        "of each round with its 95 % interval"
        f"{f', and {title(utility)} on held-out rows' if utility else ''}."
    )
    text = svg.getvalue()
    return Figure(name, caption, text[text.index("<svg") :], png.getvalue())


def _draw(axes: Axes, section: Section, results: list[Result], utility: str | None) -> None:
    from matplotlib.ticker import MaxNLocator

    second = axes.twinx() if utility else None
    for result in results:
        # A defense has the same colour in every panel.
        defenses = [place for place in section.places if place[0] == result.setting]
        colour, marker = STROKES[defenses.index(result.place) % len(STROKES)]
        _curve(axes, result.rounds[section.main], colour, marker, _short(result, results))
        if second is not None and utility:
            measured = [u for u in section.utility if u.place == result.place]
            y = [_finite(u.values.get(utility)) for u in measured]
            second.plot([u.round for u in measured], y, color=colour, ls=(0, (4, 3)), lw=1.0)
            second.set_ylabel(f"{title(utility)}, dashed")
    null = section.null(results[0], PRIOR_ONLY) or section.null(results[0], OTHER_CLIENT)
    if null is not None and section.main in null.rounds:
        at = null.rounds[section.main]
        label = f"null: {title(null.attack if null.control == 'none' else null.control)}"
        means = [point.mean for point in at.values()]
        axes.plot(list(at), means, color=INK, alpha=0.55, ls=":", lw=1.6, label=label)
    unit = next(iter(results[0].rounds[section.main].values())).unit
    axes.set_xlabel("round")
    axes.set_ylabel(f"{title(section.main)}{'' if unit == '1' else f' ({unit})'}, solid")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(axis="y", color=INK, alpha=0.12, linewidth=0.6)


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


def _finite(value: float | None) -> float:
    """A diverged model or a missing interval leaves a gap in the line."""
    return value if value is not None and math.isfinite(value) else math.nan


def _utility_name(section: Section) -> str | None:
    measured = {name for utility in section.utility for name in utility.values}
    return next((name for name in UTILITY if name in measured), None)


def _short(result: Result, others: Iterable[Result]) -> str:
    """The defense's name; with its options where two defenses share the name."""
    twins = sum(other.defense == result.defense for other in others)
    name = title(result.defense)
    return describe(name, result.defense_options) if twins > 1 else name
