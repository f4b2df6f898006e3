"""The files of an answer: JSON, a page with one table and one picture, and the chosen defense."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tomli_w

from experiments.analysis.held import SHARES, HeldWord, Target
from experiments.decision.answer import Answer, FamilyAnswer, ReachedTarget, Tried
from experiments.decision.families import with_defenses
from experiments.decision.question import FOLDER
from experiments.decision.targets import unit_of
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
from experiments.report.templates import render
from experiments.wording.names import NO_DEFENSE, compact, title
from fedsim.store.files import write_bytes, write_json

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas


def write_answer(answer: Answer, experiment: ExperimentConfig, root: Path) -> Path:
    """Write the files below the run folder.

    Returns:
        The page; where nothing was to be held the experiment with each family at its strongest
        affordable strength.
    """
    folder = root / FOLDER
    write_json(folder / "answer.json", answer)
    if not answer.question.hold:
        each = [family.defense for family in answer.families if family.defense is not None]
        return _write_experiment(folder / "equal.toml", experiment, each)
    drawn = picture(answer)
    write_bytes(folder / "frontier.svg", drawn.svg.encode())
    body = ""
    if answer.chosen is not None:
        defense = answer.families[answer.chosen].defense
        assert defense is not None
        body = tomli_w.dumps({"defenses": [defense]})
        _write_experiment(folder / "chosen.toml", experiment, [defense])
    else:
        (folder / "chosen.toml").unlink(missing_ok=True)
    page = folder / "index.html"
    write_bytes(page, _render(answer, drawn, body).encode())
    return page


def _write_experiment(
    path: Path, experiment: ExperimentConfig, defenses: Sequence[Mapping[str, Any]]
) -> Path:
    """The experiment with these defenses beside none, named after the file."""
    named = with_defenses(experiment, defenses, {"name": f"{experiment.name}-{path.stem}"})
    write_bytes(path, tomli_w.dumps(named.model_dump(mode="json", exclude_none=True)).encode())
    return path


def _render(answer: Answer, drawn: Figure, toml: str) -> str:
    return render(
        "experiments.decision",
        "calibration.html.j2",
        answer=answer,
        headline=headline(answer),
        goals=[goal(target) for target in targets_of(answer)],
        table=table(answer),
        figure=drawn,
        notes=list(notes(answer)),
        toml=toml,
        targets=[target.text() for target in targets_of(answer)],
        tried=[answer.undefended, *(trial for family in answer.families for trial in family.tried)],
        measured=measured,
    )


SIZE = (7.2, 4.4)
_FILLS: dict[HeldWord, str] = {"leaks": "full", "open": "left", "holds": "none"}
"""How a marker is filled, which stays to be told apart without colours."""


def picture(answer: Answer) -> Figure:
    """Leakage by strength, by the target that most decisions rest on."""
    target = _target(answer)
    caption = (
        f"{title(target.name)} by strength, from the weakest to the strongest of each family's "
        "range: the mean of the worst attack with what it surely is at least and at most. Full "
        "markers leak, half-full ones are open, empty ones hold; between the two shaded ends of a "
        "family nothing is decided."
    )

    def draw(canvas: Canvas) -> None:
        _by_strength(canvas.add_subplot(), answer, target)
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
        if family.chosen is not None:
            ends = (_place(family, family.leaking, most), _place(family, family.chosen, most))
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
