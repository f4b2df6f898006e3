"""The tables of bounds on any attack on a run, for the page and for a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median_low
from typing import Any, TypeAlias

from experiments.analysis.findings import Findings
from experiments.bounds.records import (
    BudgetLimit,
    Limit,
    LimitsRecord,
    RankLimit,
    SuccessLimit,
)
from experiments.plan.folder import Run, read_rules
from experiments.report.brackets import Bracket, brackets, unscored
from experiments.report.tables import Number, Table, to_terminal
from experiments.stages.search_errors import SearchErrors, read_searches
from experiments.wording.defense_names import defense_name
from experiments.wording.names import settings, title, told_apart
from fedsim.files import read_record

SettingNames: TypeAlias = Mapping[str, str]
"""Cell -> its setting."""
WHO = ("setting", "defense")


def _who(limit: Limit | SearchErrors, labels: SettingNames) -> tuple[str, str]:
    """The values of ``WHO``."""
    return labels[limit.cell], defense_name(limit.defense, limit.defense_options)


def rank_table(limits: Iterable[RankLimit], labels: SettingNames) -> Table:
    """One row per cell and exact attack for its modality."""
    return Table(
        "limits-ranks",
        "Whether exact attacks can work, known before any is run: green if nothing prevents them, "
        "amber if they work on some replies, in part or without proof, red if they cannot work. "
        "The counts are those of the first replies, at the initial weights.",
        (*WHO, "attack", "light", "counted", "median", "largest", "limit", "why"),
        tuple(
            (
                *_who(limit, labels),
                title(limit.attack),
                feasibility.colour,
                feasibility.what,
                median_low(feasibility.counts),
                max(feasibility.counts),
                feasibility.limit,
                feasibility.reason,
            )
            for limit in limits
            for feasibility in [limit.feasibility]
        ),
    )


def success_table(limits: Iterable[SuccessLimit], labels: SettingNames) -> Table:
    """One row per cell with differential privacy and kind of guess."""
    return Table(
        "limits-success",
        "The largest chance of a right guess about an example of a captured round (reconstruction "
        "robustness, Balle et al. 2022, Hayes et al. 2023): without any update, with the update of "
        "that round, and with the updates of all rounds. The example is known to be used in the "
        "captured round, as is everything that is scored, so sampling hides nothing there; into "
        "the other rounds it is drawn like any row of its client. The bound holds for every client "
        "and for every attack whose chance without an update is the one given. Noise is that of "
        "the client with the least, in units of the clipping norm, or of twice the clipping norm "
        "if two updates are compared.",
        (*WHO, "unit", "noise", "guess", "without", "one round", "all rounds", "rounds"),
        tuple(
            (
                *_who(limit, labels),
                limit.unit,
                Number(limit.noise),
                limit.guess,
                *(Number(chance) for chance in (limit.without, limit.one, limit.all)),
                limit.rounds,
            )
            for limit in limits
        ),
    )


def budget_table(known: Iterable[Bracket], labels: SettingNames) -> Table:
    """One row per cell with a budget: what attacks reached, and what none can."""
    return Table(
        "limits-budgets",
        "What the best attack surely reaches on average, and what no attack exceeds, from the "
        "information in one reply. A score in [0, 1] with mean m obeys kl(m || b) <= nats, where b "
        "is the mean of the best blind guess. Images are measured by the PSNR of their mean "
        "squared error; at most: if private images are drawn like the public ones; if Gaussian: "
        "were they Gaussian with the spectrum of these. All else is given to the attacker: the "
        "weights, the class, the other examples and clients. Exactly: share of texts that "
        "any attack returns exactly, at most, drawn like the public ones. Empty where a bound says "
        "nothing.",
        (
            *(*WHO, "nats of a reply", "nats of all rounds", "bounded by"),
            *(
                "blind guess",
                "reached",
                "by",
                "at least",
                "at most",
                "at most if Gaussian",
                "exactly",
            ),
            "holds by bound",
        ),
        tuple(
            (
                *_who(bracket.limit, labels),
                Number(bracket.limit.nats),
                Number(bracket.limit.all),
                _sources(bracket.limit),
                *(
                    bracket.blind,
                    bracket.reached,
                    bracket.attack,
                    bracket.least,
                    bracket.most,
                    bracket.assumed,
                    bracket.exact,
                ),
                "contradiction" if bracket.contradictory else "yes" if bracket.holds else "no",
            )
            for bracket in known
        ),
    )


def _sources(limit: BudgetLimit) -> str:
    """What bounds the nats of a reply, and those of all rounds where that is something else."""
    if limit.all_source in {None, limit.source}:
        return limit.source
    return f"{limit.source}; all rounds: {limit.all_source}"


def search_table(known: Sequence[SearchErrors], labels: SettingNames) -> Table:
    """One row per cell and attack that names what it chooses by."""
    attackers = [each.attacker for each in known]
    return Table(
        "search-errors",
        "Updates that an attack missed: a search error is one at which what the attack chooses by "
        "is better for the private rows than for its guess, so that a longer or better search "
        "would come nearer. At the others the update, as this attack reads it, does not tell the "
        "rows from the guess. Excess is the median over the missed; in nats, every unit makes the "
        "rows e times as likely as the guess.",
        (*WHO, "attack", "recovered", "missed", "search errors", "excess", "unit"),
        tuple(
            (
                *_who(each, labels),
                told_apart(each.attacker, attackers),
                each.recovered,
                each.missed,
                each.errors,
                None if each.excess is None else Number(each.excess),
                each.unit,
            )
            for each in known
        ),
    )


@dataclass(frozen=True)
class Limits:
    """The tables of one run that have rows."""

    run: Path
    tables: tuple[Table, ...]

    def table(self) -> dict[str, Any]:
        """As JSON data."""
        return {
            table.name: [
                {
                    column: value.value if isinstance(value, Number) else value
                    for column, value in zip(table.columns, row, strict=True)
                }
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
    both = {cell: unscored(limit, rules[experiments[cell]]) for cell, limit in known.items()}
    both |= {bracket.limit.cell: bracket for bracket in scored}
    tables = (
        rank_table(record.ranks, labels),
        success_table(record.successes, labels),
        budget_table(both.values(), labels),
        search_table(read_searches(run.root), labels),
    )
    return Limits(run.root, tuple(table for table in tables if table.rows))
