"""The files of an answer: JSON, a page with one table and one picture, and the chosen defense."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tomli_w
from markupsafe import Markup

from experiments.decision.answer import Answer, FamilyAnswer, ReachedTarget, Tried
from experiments.decision.plan import chosen
from experiments.decision.question import FOLDER
from experiments.decision.search import Word
from experiments.decision.targets import SHARES, Target, unit_of
from experiments.decision.wording import goal, headline, measured, notes, table, targets_of
from experiments.plan.config import ExperimentConfig
from experiments.report.figures import (
    INK,
    MARKERS,
    Figure,
    family_colour,
    figure,
    head,
    legend_below,
)
from experiments.report.pareto import front
from experiments.report.tables import text_of
from experiments.report.templates import render
from experiments.wording.defense_names import NO_DEFENSE, compact
from experiments.wording.names import title
from fedsim.files import write_bytes, write_json

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas


def write_answer(answer: Answer, experiment: ExperimentConfig, root: Path) -> Path:
    """Write the files below the run folder; returns the path of the page."""
    folder = root / FOLDER
    drawn = picture(answer)
    write_json(folder / "answer.json", answer)
    write_bytes(folder / "frontier.svg", drawn.svg.encode())
    body = ""
    if answer.chosen is not None:
        defense = answer.families[answer.chosen].defense
        assert defense is not None
        body = tomli_w.dumps({"defenses": [defense]})
        whole = chosen(experiment, defense).model_dump(mode="json", exclude_none=True)
        write_bytes(folder / "chosen.toml", tomli_w.dumps(whole).encode())
    else:
        (folder / "chosen.toml").unlink(missing_ok=True)
    page = folder / "index.html"
    write_bytes(page, _render(answer, drawn, body).encode())
    return page


def _render(answer: Answer, drawn: Figure, toml: str) -> str:
    return render(
        "experiments.decision",
        "calibration.html.j2",
        answer=answer,
        headline=headline(answer),
        goals=[goal(target) for target in targets_of(answer)],
        table=table(answer),
        figure=drawn,
        inline=lambda figure: Markup(figure.svg.replace(INK, "currentColor")),
        notes=list(notes(answer)),
        toml=toml,
        targets=[target.text() for target in targets_of(answer)],
        tried=[answer.undefended, *(trial for family in answer.families for trial in family.tried)],
        measured=measured,
        cell=text_of,
    )


SIZE = (9.6, 4.4)
_FILLS: dict[Word, str] = {"leaks": "full", "open": "left", "holds": "none"}
"""How a marker is filled, which stays to be told apart without colours."""


def picture(answer: Answer) -> Figure:
    """Two panels of the target that most decisions rest on."""
    target = _target(answer)
    caption = (
        f"Left, {title(target.name)} by strength, from the weakest to the strongest of each "
        "family's range: the mean of the worst attack with what it surely is at least and at "
        "most. Full markers leak, half-full ones are open, empty ones hold; between the two shaded "
        "ends of a family nothing is decided. Right, the same against utility at the end, where "
        "that was trained, with the front of what no other strength beats in both."
    )

    def draw(canvas: Canvas) -> None:
        by_strength, right = canvas.subplots(1, 2, sharey=True)
        _by_strength(by_strength, answer, target)
        _by_utility(right, answer, target)
        legend_below(canvas, SIZE[0])

    return figure("calibration", caption, draw, SIZE)


def _target(answer: Answer) -> Target:
    """A mean if one was asked for, as it tells more than a share."""
    targets = targets_of(answer)
    return next((target for target in targets if target.name not in SHARES), targets[0])


def _of(tried: Tried, target: Target) -> ReachedTarget:
    return next(reached for reached in tried.reached if reached.target == target.name)


def _by_strength(axes: Axes, answer: Answer, target: Target) -> None:
    names = [family.title for family in answer.families]
    most = max((len(family.values) for family in answer.families), default=1)
    _mark(axes, [-1.0], [answer.undefended], target, INK, "o", NO_DEFENSE)
    for number, family in enumerate(answer.families):
        colour, marker = family_colour(family.title, names), MARKERS[number % len(MARKERS)]
        places = [_place(family, trial.index, most) for trial in family.tried]
        _mark(axes, places, family.tried, target, colour, marker, family.title)
        if family.weakest is not None:
            ends = (_place(family, family.leaking, most), _place(family, family.weakest, most))
            axes.axvspan(*ends, color=colour, alpha=0.12, linewidth=0)
    axes.axhline(target.shown(target.passes), color=INK, ls=":", lw=1.3, label="limit")
    blind = _of(answer.undefended, target).blind
    if blind is not None:
        axes.axhline(blind, color=INK, ls="--", lw=0.9, alpha=0.55, label="blind guess: prior only")
    if len(answer.families) == 1 and answer.families[0].option:
        _name_strengths(axes, answer.families[0])
    else:
        axes.set_xticks([-1, 0, most - 1], ["none", "\nweakest", "strongest"])
    head(axes, "Leakage by strength")
    unit = unit_of(target.name)
    axes.set_ylabel(f"{title(target.name)}{'' if unit == '1' else f' ({unit})'}")


def _place(family: FamilyAnswer, index: int, most: int) -> float:
    """Where a strength stands, so that all families span the same width."""
    if index < 0 or len(family.values) < 2:
        return float(index)
    return index * (most - 1) / (len(family.values) - 1)


def _name_strengths(axes: Axes, family: FamilyAnswer) -> None:
    step = max(1, len(family.values) // 4)
    every = range(step, len(family.values), step)  # the first would touch "none"
    labels = [compact(family.values[i]) for i in every]
    axes.set_xticks([-1, *every], ["none", *labels])
    axes.set_xlabel(str(family.option))


def _mark(
    axes: Axes,
    places: Sequence[float],
    tried: Sequence[Tried],
    target: Target,
    colour: str,
    marker: str,
    label: str,
) -> None:
    for i, (place, trial) in enumerate(zip(places, tried, strict=True)):
        reached = _of(trial, target)
        ends = sorted((reached.low, reached.high))
        style: dict[str, Any] = {"fillstyle": _FILLS[trial.word], "markersize": 7}
        axes.plot([place, place], ends, color=colour, linewidth=1.1)
        axes.plot(
            [place],
            [reached.mean],
            color=colour,
            marker=marker,
            linestyle="none",
            label=label if i == 0 else None,
            **style,
        )


def _by_utility(axes: Axes, answer: Answer, target: Target) -> None:
    names = [family.title for family in answer.families]
    points: list[tuple[float, float]] = []
    measure = ""
    known = [(INK, "o", answer.undefended, _base(answer))]
    for number, family in enumerate(answer.families):
        colour, marker = family_colour(family.title, names), MARKERS[number % len(MARKERS)]
        known += [
            (colour, marker, trial, _utility(answer, family, trial)) for trial in family.tried
        ]
    for colour, marker, trial, (name, value) in known:
        if value is None:
            continue
        measure = name
        mean = _of(trial, target).mean
        points.append((value, mean))
        axes.plot(
            [value],
            [mean],
            color=colour,
            marker=marker,
            linestyle="none",
            fillstyle=_FILLS[trial.word],
            markersize=7,
        )
    sign = -1.0 if target.high < target.low else 1.0
    best = front([(use, sign * leak) for use, leak in points])
    axes.plot(
        [use for use, _ in best],
        [sign * leak for _, leak in best],
        color=INK,
        alpha=0.18,
        linewidth=5,
        label="Pareto front",
        zorder=1,
    )
    if not points:
        axes.text(0.5, 0.5, "no utility was trained", transform=axes.transAxes, ha="center")
        axes.set_xticks([])
    axes.axhline(target.shown(target.passes), color=INK, ls=":", lw=1.3)
    axes.set_xlabel(f"{title(measure)} at the end" if measure else "")
    head(axes, "Utility against leakage")


def _measure(answer: Answer) -> str:
    """The measure of utility that costs are in; empty if nothing was trained for it."""
    measures = [family.costs[0].measure for family in answer.families if family.costs]
    return next(iter((*measures, *answer.question.lose, *answer.undefended.utility)), "")


def _base(answer: Answer) -> tuple[str, float | None]:
    name = _measure(answer)
    bases = [family.costs[0].base for family in answer.families if family.costs]
    return name, next(iter(bases), answer.undefended.utility.get(name))


def _utility(answer: Answer, family: FamilyAnswer, tried: Tried) -> tuple[str, float | None]:
    name = _measure(answer)
    if family.costs and tried.index == family.weakest:
        return name, family.costs[0].value
    return name, tried.utility.get(name)
