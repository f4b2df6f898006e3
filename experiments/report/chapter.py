"""A chapter of the page: one task, model and protocol."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from experiments.analysis.findings import Result, TaskFindings
from experiments.analysis.keys import DefenseInSetting
from experiments.bounds.records import BudgetLimit
from experiments.report.answers import SectionAnswer, answers
from experiments.report.appendix import appendix
from experiments.report.beyond import Inferences, beyond, inferences_of
from experiments.report.brackets import Bracket, brackets
from experiments.report.curves import curves
from experiments.report.figures import Figure
from experiments.report.first_screen import changes, worst
from experiments.report.gallery import Strip, strips
from experiments.report.heatmap import heatmaps
from experiments.report.limit_tables import budget_table
from experiments.report.lineup import Lineup, lineups
from experiments.report.naming import place_of
from experiments.report.pareto import pictures
from experiments.report.recovered_rows import union_figures, union_table, unions
from experiments.report.result_tables import tables, tradeoff_tables, trend
from experiments.report.tables import Table, named
from experiments.report.verdict_tables import defense_table, verdict_tables
from experiments.stages.coverage import Coverage
from experiments.stages.gallery import Shown
from experiments.stages.updates import UpdateRow
from experiments.wording.names import settings, title
from experiments.wording.prose import capital
from experiments.wording.threat import ThreatModel, threat_model
from fedsim.cell import CellConfig

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
