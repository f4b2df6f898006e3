"""A chapter of the page: one task, model and protocol."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from experiments.analysis.findings import Leakage, Result, TaskFindings
from experiments.analysis.keys import DefenseInSetting
from experiments.report.answers import SectionAnswer, answers
from experiments.report.appendix import appendix
from experiments.report.beyond import Inferences, beyond, inferences_of
from experiments.report.brackets import Bracket, brackets
from experiments.report.costs import costs
from experiments.report.curves import curves
from experiments.report.figures import INK, Figure, panel
from experiments.report.first_screen import changes, worst
from experiments.report.gallery import Strip, strips
from experiments.report.limit_tables import budget_table
from experiments.report.lineup import Lineup, lineups
from experiments.report.naming import attack_label, named_place, place_of, unit_of_main
from experiments.report.pareto import pictures
from experiments.report.recovered_rows import RecoveredRows, union_figures, union_table, unions
from experiments.report.result_tables import tables, tradeoff_tables, trend
from experiments.report.run_results import RunResults
from experiments.report.tables import Table, named
from experiments.report.verdict_tables import defense_table, verdict_tables
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


@dataclass(frozen=True)
class Chapter:
    """One section of the page; each part of it is made when it is first asked for.

    Attributes:
        number: from 1.
        section: what was found.
        results: of the cells of the section.
        full: show what is shown in full only.
    """

    number: int
    section: TaskFindings
    results: RunResults
    full: bool

    @cached_property
    def anchor(self) -> str:
        """Of its heading; begins the names of its files."""
        names = (Path(self.section.dataset).name, Path(self.section.model).name)
        return slug(f"{self.number} {' '.join(names)} {self.section.protocol}")

    @property
    def heading(self) -> str:
        """Task, data set, model and protocol."""
        return f"{capital(title(self.section.task))}: {place_of(self.section)}"

    @property
    def judged(self) -> bool:
        """Whether the page speaks of rows: some were attacked, or nothing else was inferred."""
        return bool(self.section.results or not self.inferences)

    @property
    def seeds(self) -> frozenset[int]:
        """Of the cells that were attacked, or of all where none was."""
        cells = self.results.cells.values()
        return frozenset(cell.seed for cell in cells if cell.capture.enabled) or frozenset(
            cell.seed for cell in cells
        )

    @cached_property
    def threat(self) -> ThreatModel:
        """Who attacked, and what was simulated."""
        return threat_model(list(self.results.cells.values()), foreign=self.results.foreign)

    @cached_property
    def answers(self) -> list[SectionAnswer]:
        """The answer in each setting."""
        return answers(self.section)

    @cached_property
    def worst(self) -> str:
        """The victim of whom most came back; empty where no example may be named."""
        return worst(self.section, self.results.examples)

    @cached_property
    def changes(self) -> list[str]:
        """What would change the answer."""
        return list(changes(self.section, self.brackets))

    @property
    def costs(self) -> list[str]:
        """What each defense costs."""
        return costs(self.section)

    @cached_property
    def brackets(self) -> dict[DefenseInSetting, Bracket]:
        """What attacks reached and what none can, where the latter is known."""
        return brackets(self.section, self.results.budgets)

    @cached_property
    def inferences(self) -> list[Inferences]:
        """By setting and defense, where more was inferred or epsilon was audited."""
        return beyond(self.section, self.results)

    def inferences_of(self, place: DefenseInSetting) -> Inferences | None:
        """What else is known of a defense."""
        return inferences_of(self.inferences, place)

    @property
    def groups(self) -> list[list[Result]]:
        """The results of each defense and setting, in order."""
        by_place: dict[object, list[Result]] = {}
        for result in self.section.results:
            by_place.setdefault(result.place, []).append(result)
        return list(by_place.values())

    @cached_property
    def lineups(self) -> list[Lineup]:
        """The same victims under each defense."""
        return lineups(self.section, self.results.examples, self.results.cells)

    @cached_property
    def strips(self) -> list[Strip]:
        """Examples of each attack, in full only."""
        return strips(self.section, self.results.examples) if self.full else []

    @cached_property
    def tables(self) -> dict[str, Table]:
        """By kind."""
        section = self.section
        parts = (
            *verdict_tables(section),
            *tradeoff_tables(section),
            *tables(section),
            trend(section, self.results.updates),
            union_table(section, self._recovered),
        )
        return named(parts, self.anchor)

    @cached_property
    def extras(self) -> dict[str, Table]:
        """The tables at the end by heading: in full, or once ``fedsim limits`` was run."""
        if not self.full and self.results.limits is None:
            return {}
        by_heading = dict(appendix(self.results, self.anchor))
        if self.brackets:
            bounds = budget_table(self.brackets.values(), settings(self.results.cells, {}))
            heading = "How close a reconstruction can come"
            by_heading[heading] = named([bounds], self.anchor)[bounds.name]
        return by_heading

    @property
    def brief(self) -> dict[str, Table]:
        """The tables that are written for all tasks together, by kind."""
        defenses = defense_table(self.section, self.inferences, self.brackets)
        extras = {
            table.name.removeprefix(f"{self.anchor}-"): table for table in self.extras.values()
        }
        return {"defenses": defenses} | {kind: self.tables[kind] for kind in BRIEF} | extras

    @property
    def all_tables(self) -> list[Table]:
        """Those of all kinds."""
        return [*self.tables.values(), *self.extras.values()]

    @cached_property
    def pictures(self) -> list[Figure]:
        """What utility buys: in full, or where there are many defenses."""
        shown = self.full or len(self.section.evidence.verdicts) >= MANY
        return pictures(self.section, f"{self.anchor}-pareto") if shown else []

    @cached_property
    def heatmaps(self) -> list[Figure]:
        """Of two swept options."""
        return heatmaps(self.section, self.results.cells, f"{self.anchor}-sweep")

    @cached_property
    def figures(self) -> list[Figure]:
        """Leakage and utility by round."""
        return curves(
            self.section, f"{self.anchor}-rounds", None if self.full else (self.section.main,)
        )

    @cached_property
    def unions(self) -> list[Figure]:
        """Rows recovered so far, by round."""
        return union_figures(self.section, self._recovered, f"{self.anchor}-coverage")

    @cached_property
    def _recovered(self) -> list[RecoveredRows]:
        return unions(self.section, self.results.coverage)

    @property
    def all_figures(self) -> list[Figure]:
        """Those of all kinds."""
        return [*self.pictures, *self.heatmaps, *self.figures, *self.unions]


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
