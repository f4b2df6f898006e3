"""The tables of bounds on any attack on a run, for the page and for a terminal."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median_low
from typing import Any, TypeAlias

from experiments.analysis.findings import Findings
from experiments.bounds.records import BudgetLimit, Limit, LimitsRecord, RankLimit, SuccessLimit
from experiments.plan.folder import Run, read_rules
from experiments.report.brackets import Bracket, bracket, brackets
from experiments.report.tables import Number, Table, Value, to_terminal
from experiments.stages.search_errors import SearchErrors, read_searches
from experiments.wording.catalogue import sentence
from experiments.wording.names import defense_name, settings, title, told_apart
from fedsim.store.files import read_record

SettingNames: TypeAlias = Mapping[str, str]
"""Cell -> its setting."""


def _who(limit: Limit | SearchErrors, labels: SettingNames) -> dict[str, Value]:
    name = defense_name(limit.defense, limit.defense_options)
    return {"setting": labels[limit.cell], "defense": name}


def rank_table(limits: Iterable[RankLimit], labels: SettingNames) -> Table:
    """One row per cell and exact attack for its modality."""
    rows = tuple(
        {
            **_who(limit, labels),
            "attack": title(limit.attack),
            "light": feasibility.colour,
            "counted": feasibility.what,
            "median": median_low(feasibility.counts),
            "largest": max(feasibility.counts),
            "limit": feasibility.limit,
            "why": feasibility.reason,
        }
        for limit in limits
        for feasibility in [limit.feasibility]
    )
    return Table("limits-ranks", sentence("table.limits-ranks"), rows)


def success_table(limits: Iterable[SuccessLimit], labels: SettingNames) -> Table:
    """One row per cell with differential privacy and kind of guess."""
    rows = tuple(
        {
            **_who(limit, labels),
            "unit": limit.unit,
            "noise": Number(limit.noise),
            "guess": limit.guess,
            "without": Number(limit.without),
            "one round": Number(limit.one),
            "all rounds": Number(limit.all),
            "rounds": limit.rounds,
        }
        for limit in limits
    )
    return Table("limits-success", sentence("table.limits-success"), rows)


def budget_table(known: Iterable[Bracket], labels: SettingNames) -> Table:
    """One row per cell with a budget: what attacks reached, and what none can."""
    rows = tuple(
        {
            **_who(bracket.limit, labels),
            "nats of a reply": Number(bracket.limit.nats),
            "nats of all rounds": Number(bracket.limit.all),
            "bounded by": _sources(bracket.limit),
            "blind guess": bracket.blind,
            "reached": bracket.reached,
            "by": bracket.attack,
            "at least": bracket.least,
            "at most": bracket.most,
            "at most if Gaussian": bracket.assumed,
            "exactly": bracket.exact,
            "holds by bound": "contradiction"
            if bracket.contradictory
            else "yes"
            if bracket.holds
            else "no",
        }
        for bracket in known
    )
    return Table("limits-budgets", sentence("table.limits-budgets"), rows)


def _sources(limit: BudgetLimit) -> str:
    """What bounds the nats of a reply, and those of all rounds where that is something else."""
    if limit.all_source in {None, limit.source}:
        return limit.source
    return f"{limit.source}; all rounds: {limit.all_source}"


def search_table(known: Sequence[SearchErrors], labels: SettingNames) -> Table:
    """One row per cell and attack that names what it chooses by."""
    attackers = [each.attacker for each in known]
    rows = tuple(
        {
            **_who(each, labels),
            "attack": told_apart(each.attacker, attackers),
            "recovered": each.recovered,
            "missed": each.missed,
            "search errors": each.errors,
            "excess": None if each.excess is None else Number(each.excess),
            "unit": each.unit,
        }
        for each in known
    )
    return Table("search-errors", sentence("table.search-errors"), rows)


@dataclass(frozen=True)
class Limits:
    """The tables of one run that have rows."""

    run: Path
    tables: tuple[Table, ...]

    def table(self) -> dict[str, Any]:
        """As JSON data."""
        return {
            table.name: [
                {k: v.value if isinstance(v, Number) else v for k, v in row.items()}
                for row in table.rows
            ]
            for table in self.tables
        }

    def text(self) -> str:
        """For a terminal."""
        tables = "\n".join(map(to_terminal, self.tables))
        return f"{tables}\nfedsim report {self.run} puts these tables on the page."


def limit_tables(run: Run, record: LimitsRecord) -> Limits:
    """The tables of a run's limits, without empty ones."""
    experiments = {cell.name: cell.experiment.name for cell in run.cells}
    labels = settings({cell.name: cell.config for cell in run.cells}, experiments)
    path = run.root / "summary.json"
    sections = read_record(path, Findings).sections if path.exists() else ()
    known = {budget.cell: budget for budget in record.budgets}
    rules = read_rules(run.root)
    scored = [bracket for section in sections for bracket in brackets(section, known).values()]
    both = {
        cell: bracket(limit, "image" if limit.images else "text", rules[experiments[cell]])
        for cell, limit in known.items()
    }
    both |= {bracket.limit.cell: bracket for bracket in scored}
    tables = (
        rank_table(record.ranks, labels),
        success_table(record.successes, labels),
        budget_table(both.values(), labels),
        search_table(read_searches(run.root), labels),
    )
    return Limits(run.root, tuple(table for table in tables if table.rows))
