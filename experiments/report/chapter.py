"""A chapter of the page: one task, model and protocol."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from experiments.analysis.findings import Leakage, Result, TaskFindings
from experiments.analysis.keys import DefenseInSetting
from experiments.bounds.records import BudgetLimit
from experiments.report.answers import SectionAnswer, answers
from experiments.report.appendix import appendix
from experiments.report.beyond import Inferences, beyond, inferences_of
from experiments.report.brackets import Bracket, brackets
from experiments.report.curves import curves
from experiments.report.figures import INK, Figure, panel
from experiments.report.first_screen import changes, worst
from experiments.report.gallery import Strip, strips
from experiments.report.limit_tables import budget_table
from experiments.report.lineup import Lineup, lineups
from experiments.report.naming import attack_label, named_place, place_of, unit_of_main
from experiments.report.pareto import pictures
from experiments.report.recovered_rows import union_figures, union_table, unions
from experiments.report.result_tables import tables, tradeoff_tables, trend
from experiments.report.tables import Table, named
from experiments.report.verdict_tables import defense_table, verdict_tables
from experiments.stages.coverage import Coverage
from experiments.stages.gallery import Shown
from experiments.stages.updates import UpdateRow
from experiments.wording.names import natural, option, settings, show, swept, title
from experiments.wording.prose import capital
from experiments.wording.threat import ThreatModel, threat_model
from fedsim.cell import CellConfig
from fedsim.records import AttackKey

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BRIEF = ("leakage", "rounds", "utility", "jobs", "problems")
"""The kinds of tables that are written, beside that of the defenses, unless all are."""

MANY = 4
"""From so many defenses on a picture of what utility buys tells more than their table."""


@dataclass(frozen=True, slots=True)
class Chapter:
    """One section of the page.

    Attributes:
        anchor: of its heading; begins the names of its files.
        seeds: of the cells that were attacked, or of all where none was.
        tables: by kind.
        brief: those that are written for all tasks together, by kind.
        extras: by heading.
        inferences: by setting and defense, where more was inferred or epsilon was audited.
        brackets: what attacks reached and what none can, where the latter is known.
        worst: the victim of whom most came back; empty where no example may be named.
        changes: what would change the answer.
    """

    anchor: str
    section: TaskFindings
    threat: ThreatModel
    seeds: frozenset[int]
    answers: list[SectionAnswer]
    lineups: list[Lineup]
    strips: list[Strip]
    tables: dict[str, Table]
    brief: dict[str, Table]
    extras: dict[str, Table]
    pictures: list[Figure]
    heatmaps: list[Figure]
    figures: list[Figure]
    unions: list[Figure]
    inferences: list[Inferences]
    brackets: dict[DefenseInSetting, Bracket]
    worst: str
    changes: list[str]

    @property
    def heading(self) -> str:
        """Task, data set, model and protocol."""
        section = self.section
        return f"{capital(title(section.task))}: {place_of(section)}"

    def inferences_of(self, place: DefenseInSetting) -> Inferences | None:
        """What else is known of a defense."""
        return inferences_of(self.inferences, place)

    @property
    def judged(self) -> bool:
        """Whether the page speaks of rows: some were attacked, or nothing else was inferred."""
        return bool(self.section.results or not self.inferences)

    @property
    def groups(self) -> list[list[Result]]:
        """The results of each defense and setting, in order."""
        by_place: dict[object, list[Result]] = {}
        for result in self.section.results:
            by_place.setdefault(result.place, []).append(result)
        return list(by_place.values())

    @property
    def all_figures(self) -> list[Figure]:
        """Those of all kinds."""
        return [*self.pictures, *self.heatmaps, *self.figures, *self.unions]

    @property
    def all_tables(self) -> list[Table]:
        """Those of all kinds."""
        return [*self.tables.values(), *self.extras.values()]


def chapter(
    number: int,
    section: TaskFindings,
    run: Path,
    cells: dict[str, CellConfig],
    limits: Mapping[str, BudgetLimit],
    coverage: Sequence[Coverage],
    updates: Sequence[UpdateRow],
    examples: Sequence[Shown],
    *,
    full: bool,
) -> Chapter:
    """Everything about one section, drawn and in sentences.

    Args:
        number: of the chapter, from 1.
        section: what was found.
        run: the run folder.
        cells: every cell of the run.
        limits: what replies tell at most, by cell.
        coverage: what was recovered by round.
        updates: what clients sent.
        examples: those to choose from, none where the page is redacted.
        full: show what is shown in full only.
    """
    mine = {name: cells[name] for name in section.cells}
    names = (Path(section.dataset).name, Path(section.model).name, section.protocol)
    stem = slug(f"{number} {' '.join(names)}")
    recovered = unions(section, coverage)
    by_kind = named(
        (
            *verdict_tables(section),
            *tradeoff_tables(section),
            *tables(section),
            trend(section, updates),
            union_table(section, recovered),
        ),
        stem,
    )
    many = len(section.evidence.verdicts) >= MANY
    shown = full or (run / "limits.json").exists()
    known = brackets(section, limits)
    others = appendix(run, mine, stem) if shown else {}
    if shown and known:
        bounds = budget_table(known.values(), settings(mine, {}))
        others |= {"How close a reconstruction can come": named([bounds], stem)[bounds.name]}
    named_others = {t.name.removeprefix(f"{stem}-"): t for t in others.values()}
    inferences = beyond(section, run, mine)
    seeds = {cell.seed for cell in mine.values() if cell.capture.enabled}
    return Chapter(
        anchor=stem,
        section=section,
        threat=threat_model(list(mine.values())),
        seeds=frozenset(seeds or {cell.seed for cell in mine.values()}),
        answers=answers(section),
        lineups=lineups(section, examples, mine),
        strips=strips(section, examples) if full else [],
        tables=by_kind,
        brief={"defenses": defense_table(section, inferences, known)}
        | {k: by_kind[k] for k in BRIEF}
        | named_others,
        extras=others,
        pictures=pictures(section, f"{stem}-pareto") if full or many else [],
        heatmaps=heatmaps(section, mine, f"{stem}-sweep"),
        figures=curves(section, f"{stem}-rounds", None if full else (section.main,)),
        unions=union_figures(section, recovered, f"{stem}-coverage"),
        inferences=inferences,
        brackets=known,
        worst=worst(section, examples),
        changes=list(changes(section, known)),
    )


def slug(text: str) -> str:
    """Lower-case letters, digits and hyphens: safe as a file name, a label and an anchor."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


class Field(NamedTuple):
    """The values of both options, as they are printed."""

    down: str
    across: str


Grid = dict[Field, Leakage]


def heatmaps(section: TaskFindings, cells: Mapping[str, CellConfig], stem: str) -> list[Figure]:
    """A panel per attack and defense; none unless exactly two options were swept."""
    values = swept(cells)
    keys = list(next(iter(values.values()), {}))
    if len(keys) != 2:
        return []
    drawn: list[Figure] = []
    for (defense, attacker), grid in _grids(section, values, Field(*keys)).items():
        if all(len(set(ticks)) > 1 for ticks in zip(*grid, strict=True)):
            heading = f"{attack_label(section, attacker)}\n{defense}"
            name = f"{stem}-{len(drawn) + 1}"
            drawn.append(_figure(section, name, heading, Field(*keys), grid))
    return drawn


def _grids(
    section: TaskFindings, values: Mapping[str, Mapping[str, Any]], options: Field
) -> dict[tuple[str, AttackKey], Grid]:
    """(name of the defense, attack) -> its mean at each pair of values."""
    grids: dict[tuple[str, AttackKey], Grid] = {}
    for result in section.results:
        leakage = result.leakage.get(section.main)
        if leakage is None or result.is_null or result.is_control:
            continue
        grid = grids.setdefault((named_place(result.place)[1], result.attacker), {})
        for cell_options in (values[cell] for cell in result.cells):
            grid[
                Field(option(cell_options[options.down]), option(cell_options[options.across]))
            ] = leakage
    return grids


def _figure(section: TaskFindings, name: str, heading: str, options: Field, grid: Grid) -> Figure:
    down = sorted({field.down for field in grid}, key=natural)
    across = sorted({field.across for field in grid}, key=natural)
    unit = unit_of_main(section)
    metric = f"{title(section.main)}{'' if unit == '1' else f' ({unit})'}"
    caption = (
        f"{heading.replace(chr(10), ', ')}: mean {metric} by {options.down} and {options.across}."
    )

    def draw(axes: Axes) -> None:
        means = [
            [grid[f].mean if (f := Field(y, x)) in grid else math.nan for x in across] for y in down
        ]
        limits = (0.0, 1.0) if unit == "1" else (None, None)
        image = axes.imshow(means, cmap="cividis", aspect="auto", vmin=limits[0], vmax=limits[1])
        low, high = image.get_clim()
        for row, y in enumerate(down):
            for column, x in enumerate(across):
                if (field := Field(y, x)) in grid:
                    value = grid[field].mean
                    dark = high == low or (value - low) / (high - low) < 0.55
                    text, colour = show(value, unit), "white" if dark else "black"
                    axes.text(column, row, text, ha="center", va="center", color=colour)
        axes.set_xticks(range(len(across)), across)
        axes.set_yticks(range(len(down)), down)
        axes.set_xlabel(options.across)
        axes.set_ylabel(options.down)
        axes.spines[:].set_color(INK)

    return panel(name, caption, heading, draw, legend=False)
