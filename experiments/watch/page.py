"""The live page, drawn with the parts of the report."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from importlib.resources import files
from itertools import chain
from statistics import fmean
from typing import TYPE_CHECKING

from markupsafe import Markup

from experiments.report.curves import FEW
from experiments.report.figures import INK, Figure, frame_decibels, panel, strokes
from experiments.report.gallery import data_uri, mark, words
from experiments.report.templates import render
from experiments.watch.state import CellState, CurveKey, State
from experiments.wording.defense_names import defense_name, spoken
from experiments.wording.names import duration, show, title, utility_unit
from fedsim.build import registry
from fedsim.metrics import METRICS
from fedsim.records import PRIOR_ONLY, shown

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SCRIPT = files("experiments.watch").joinpath("watch.js").read_text("utf-8")
"""The one script of the page, which the security policy knows by its hash."""
Curve = tuple[CurveKey, list[tuple[int, float]]]


def page(name: str, state: State) -> str:
    """The whole page of a run at one moment; its script replaces the sections that changed."""
    return render(
        "experiments.watch",
        "watch.html.j2",
        name=name,
        state=state,
        settled=sum(_settled(cell) for cell in state.cells),
        planned=sum(cell.planned or cell.jobs.total() for cell in state.cells),
        counted=all(cell.planned is not None for cell in state.cells),
        cells=[(cell, _settled(cell), _words(cell)) for cell in state.cells],
        place=_place,
        leakage=[
            (line, len(values), show(fmean(values), _unit(line.metric)))
            for line, by_round in state.leakage.items()
            for values in [[*chain(*by_round.values())]]
        ],
        figures=list(_figures(state)),
        inline=lambda figure: Markup(figure.svg.replace(INK, "currentColor")),
        unit=_unit,
        **{each.__name__: each for each in (data_uri, duration, mark, show, title, words)},
        script=Markup(SCRIPT),  # ours
    )


def _settled(cell: CellState) -> int:
    return sum(cell.jobs[state] for state in cell.jobs if state not in {"queued", "running"})


def _words(cell: CellState) -> str:
    """Its jobs but those that are done: ``2 running, 1 failed``."""
    states = (state for state in sorted(cell.jobs) if state != "done" and cell.jobs[state])
    return ", ".join(f"{cell.jobs[state]} {shown(state)}" for state in states)


def _place(line: CurveKey | CellState) -> str:
    setting, defense, options = line.place
    name = spoken(defense_name(defense, options))
    return f"{setting}: {name}" if setting else name


def _unit(metric: str) -> str:
    known = registry(METRICS, "fedsim.metrics")
    return known[metric].unit if metric in known else utility_unit(metric)


def _figures(state: State) -> Iterator[Figure]:
    """A panel for each metric and attack, and for each measure of utility, from two rounds on."""
    leakage = [
        (line, [(number, fmean(values)) for number, values in sorted(by_round.items())])
        for line, by_round in state.leakage.items()
        if line.attack != title(PRIOR_ONLY)
    ]
    panels: dict[tuple[str, str], list[Curve]] = {}
    for line, points in [*leakage, *state.utility.items()]:
        if len({number for number, _ in points}) > 1:
            panels.setdefault((line.metric, line.attack), []).append((line, points))
    for number, ((metric, attack), curves) in enumerate(panels.items()):
        said = f"{title(metric)} by round"
        heading = f"{attack}: {said}" if attack else said
        yield panel(f"watch-{number}", heading, heading, partial(_draw, curves), (4.6, 3.2))


def _draw(curves: list[Curve], axes: Axes) -> None:
    from matplotlib.ticker import MaxNLocator

    style = strokes([line.place for line, _ in curves])
    for line, points in curves:
        rounds, values = zip(*sorted(points), strict=True)
        stroke = style[line.place]
        marker = stroke.marker if len(rounds) <= FEW else ""
        axes.plot(rounds, values, color=stroke.colour, marker=marker, ms=4, label=_place(line))
    unit = _unit(curves[0][0].metric)
    if unit in {"dB", "1", "rate"}:  # panels of one page compare
        axes.set_ylim(0, None if unit == "dB" else 1.04)
    if unit == "dB":
        frame_decibels(axes)
    axes.set_xlabel("round")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(axis="y", color=INK, alpha=0.12, linewidth=0.6)
