"""A chapter of the page: one task, model and protocol."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from experiments.analysis.findings import Result, TaskFindings
from experiments.analysis.frames import DefenseInSetting
from experiments.report.beyond import Inferences, beyond, inferences_of
from experiments.report.brackets import Bracket, brackets
from experiments.report.curves import curves
from experiments.report.figures import Figure
from experiments.report.first_screen import changes, costs, worst
from experiments.report.gallery import Lineup, lineups
from experiments.report.limit_tables import budget_table
from experiments.report.naming import place_of
from experiments.report.pareto import pictures
from experiments.report.result_tables import appendix, coverage_table, defense_table, tables
from experiments.report.run_results import RunResults
from experiments.report.statements import SectionAnswer, answers
from experiments.report.tables import Table
from experiments.wording.catalogue import Said
from experiments.wording.names import settings, title
from experiments.wording.prose import capital
from experiments.wording.threat import ThreatModel, threat_model

MANY = 4
"""From so many defenses on a picture of what utility buys tells more than their table."""


@dataclass(frozen=True)
class Chapter:
    """One section of the page; each part of it is made when it is first asked for.

    Attributes:
        number: from 1.
        section: what was found.
        results: of the cells of the section.
    """

    number: int
    section: TaskFindings
    results: RunResults

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
    def worst(self) -> Said | None:
        """The victim of whom most came back; None where no example may be named."""
        return worst(self.section, self.results.examples)

    @cached_property
    def changes(self) -> list[Said]:
        """What would change the answer."""
        return list(changes(self.section, self.brackets))

    @property
    def costs(self) -> list[tuple[str, list[Said]]]:
        """What each defense costs."""
        return costs(self.section)

    @cached_property
    def brackets(self) -> dict[DefenseInSetting, Bracket]:
        """What attacks reached and what none can, where the latter is known."""
        return brackets(self.section, self.results.budgets)

    @cached_property
    def inferences(self) -> list[Inferences]:
        """By setting and defense, where more was inferred or epsilon was audited."""
        return beyond(self.results)

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
    def tables(self) -> dict[str, Table]:
        """By kind."""
        defenses = defense_table(self.section, self.inferences, self.brackets)
        parts = (
            *tables(self.section),
            coverage_table(self.section, self.results.coverage),
        )
        return {defenses.name: defenses} | {table.name: table.filled for table in parts}

    @cached_property
    def extras(self) -> dict[str, Table]:
        """The tables at the end by heading: norms, and what ``fedsim limits`` wrote."""
        by_heading = appendix(self.results)
        if self.brackets and self.results.limits is not None:
            bounds = budget_table(self.brackets.values(), settings(self.results.cells, {}))
            by_heading["How close a reconstruction can come"] = bounds.filled
        return by_heading

    @property
    def all_tables(self) -> list[Table]:
        """Those of all kinds."""
        return [*self.tables.values(), *self.extras.values()]

    @cached_property
    def pictures(self) -> list[Figure]:
        """What utility buys, where there are many defenses."""
        shown = len(self.section.evidence.verdicts) >= MANY
        return pictures(self.section, f"{self.anchor}-pareto") if shown else []

    @cached_property
    def figures(self) -> list[Figure]:
        """Leakage and utility by round."""
        return curves(self.section, f"{self.anchor}-rounds")

    @property
    def all_figures(self) -> list[Figure]:
        """Those of all kinds."""
        return [*self.pictures, *self.figures]


def slug(text: str) -> str:
    """Lower-case letters, digits and hyphens: safe as a file name, a label and an anchor."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
