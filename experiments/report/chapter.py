"""A chapter of the page: one task, model and protocol."""

import re
from dataclasses import dataclass
from pathlib import Path

from experiments.analysis.findings import TaskFindings
from experiments.analysis.keys import DefenseInSetting
from experiments.report.beyond import Inferences, beyond
from experiments.report.brackets import Bracket, brackets
from experiments.report.curves import curves
from experiments.report.figures import Figure
from experiments.report.first_screen import changes, costs, worst
from experiments.report.gallery import Lineup, lineups
from experiments.report.naming import place_of
from experiments.report.pareto import pictures
from experiments.report.result_tables import appendix, coverage_table, defense_table, tables
from experiments.report.run_results import RunResults
from experiments.report.statements import SectionAnswer, answers
from experiments.report.tables import Table
from experiments.wording.catalogue import Said
from experiments.wording.names import title
from experiments.wording.prose import capital
from experiments.wording.threat import ThreatModel, threat_model

MANY = 4
"""From so many defenses on a picture of what utility buys tells more than their table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chapter:
    """One section of the page.

    Attributes:
        section: what was found.
        anchor: of its heading; begins the names of its files.
        heading: task, data set, model and protocol.
        seeds: of the cells that were attacked, or of all where none was.
        threat: who attacked, and what was simulated.
        answers: the answer in each setting.
        worst: the victim of whom most came back; None where no example may be named.
        changes: what would change the answer.
        costs: what each defense costs.
        brackets: what attacks reached and what none can, where the latter is known.
        inferences: by setting and defense, where more was inferred or epsilon was audited.
        lineups: the same victims under each defense.
        tables: by kind.
        extras: the tables at the end by heading: what ``fedsim limits`` wrote.
        pictures: what utility buys, where there are many defenses.
        figures: leakage and utility by round.
    """

    section: TaskFindings
    anchor: str
    heading: str
    seeds: frozenset[int]
    threat: ThreatModel
    answers: list[SectionAnswer]
    worst: Said | None
    changes: list[Said]
    costs: list[tuple[str, list[Said]]]
    brackets: dict[DefenseInSetting, Bracket]
    inferences: list[Inferences]
    lineups: list[Lineup]
    tables: dict[str, Table]
    extras: dict[str, Table]
    pictures: list[Figure]
    figures: list[Figure]

    @property
    def judged(self) -> bool:
        """Whether the page speaks of rows: some were attacked, or nothing else was inferred."""
        return bool(self.section.results or not self.inferences)


def chapter_of(number: int, section: TaskFindings, results: RunResults) -> Chapter:
    """The chapter of one section.

    Args:
        number: from 1.
        section: what was found.
        results: of the cells of the section.
    """
    cells = results.cells.values()
    names = (Path(section.dataset).name, Path(section.model).name)
    anchor = slug(f"{number} {' '.join(names)} {section.protocol}")
    known, inferences = brackets(section, results.budgets), beyond(results)
    defenses = defense_table(section, inferences, known)
    parts = (*tables(section), coverage_table(section, results.coverage))
    many = len(section.evidence.verdicts) >= MANY
    return Chapter(
        section=section,
        anchor=anchor,
        heading=f"{capital(title(section.task))}: {place_of(section)}",
        seeds=frozenset(cell.seed for cell in cells if cell.capture.enabled)
        or frozenset(cell.seed for cell in cells),
        threat=threat_model(list(cells), foreign=results.foreign),
        answers=answers(section),
        worst=worst(section, results.examples),
        changes=list(changes(section, known)),
        costs=costs(section),
        brackets=known,
        inferences=inferences,
        lineups=lineups(section, results.examples, results.cells),
        tables={defenses.name: defenses} | {table.name: table.filled for table in parts},
        extras=appendix(results, known.values()),
        pictures=pictures(section, f"{anchor}-pareto") if many else [],
        figures=curves(section, f"{anchor}-rounds"),
    )


def slug(text: str) -> str:
    """Lower-case letters, digits and hyphens: safe as a file name, a label and an anchor."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
