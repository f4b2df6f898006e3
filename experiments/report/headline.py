"""What a run says to a terminal: its closing table."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from experiments.analysis.evidence import Verdict
from experiments.analysis.findings import Findings, TaskFindings
from experiments.report.details import recovered, refusals
from experiments.report.first_screen import signed
from experiments.report.naming import attack_label, name_of, things, useful
from experiments.report.statements import word_of
from experiments.wording.names import title
from fedsim.records import PRIOR_ONLY
from fedsim.store.files import read_record

_MOST = 12
"""Defenses that the closing table shows."""
_COLUMNS = ("defense", "verdict", "strongest attack", "mean", "blind", "worst 10 %", "came back")
_WIDEST = 40
"""Characters of a name, after which it is cut."""


class ClosingRow(NamedTuple):
    """What a run says of one defense to a terminal.

    Attributes:
        defense: its name.
        verdict: its word, with the grade of a leak.
        attack: the strongest; empty where none could run.
        mean: of the main metric.
        blind: the same of a blind guess.
        worst: mean of the tenth of the victims of whom most came back.
        recovered: how many of how many victims.
        cost: in utility.
        refused: which attacks refused every victim, and why.
    """

    defense: str
    verdict: str
    attack: str = ""
    mean: str = ""
    blind: str = ""
    worst: str = ""
    recovered: str = ""
    cost: str = ""
    refused: str = ""


def headline(run: Path) -> list[ClosingRow]:
    """The answer of every task: no defense first, then what leaks.

    Raises:
        StoreError: the run has no report.
    """
    findings = read_record(run / "summary.json", Findings)
    return [row for section in findings.sections for row in closing_rows(section)]


def closing_rows(section: TaskFindings) -> Iterator[ClosingRow]:
    """One row for each defense."""
    for verdict in sorted(section.evidence.verdicts, key=_urgency):
        yield _row(section, verdict, name_of(section, verdict))


def closing_table(rows: Sequence[ClosingRow]) -> str:
    """The rows as a table of plain text, and below it what was refused."""
    shown = [(*row[:6], ", ".join(filter(None, (row.recovered, row.cost)))) for row in rows]
    cells = [[_cut(cell) for cell in row] for row in [_COLUMNS, *shown[:_MOST]]]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = [
        "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in cells
    ]
    if (more := len(rows) - _MOST) > 0:
        lines.append(f"and {more} more, which the report shows")
    refused = [f"{row.defense}: {row.refused}" for row in rows[:_MOST] if row.refused]
    return "\n".join([*lines, *refused])


def _cut(text: str) -> str:
    return text if len(text) <= _WIDEST else f"{text[: _WIDEST - 1]}\N{HORIZONTAL ELLIPSIS}"


def _urgency(verdict: Verdict) -> tuple[bool, bool]:
    """No defense first, then what leaks."""
    return verdict.defense != "none", "leak" not in verdict.word or verdict.word == "no leak found"


def _row(section: TaskFindings, verdict: Verdict, where: str) -> ClosingRow:
    """The word of a verdict, its strongest attack, and what came back."""
    causes = refusals(section, verdict.place).items()
    refused = "; ".join(f"{who} refused{f': {why}' if why else ''}" for who, why in causes)
    if verdict.strongest is None:
        measured = any(r.leakage and section.main not in r.leakage for r in section.results)
        why = f"{section.main} is not in metrics" if measured else "no attack could run"
        return ClosingRow(where, why, refused=refused)
    counts, grade = recovered(section, verdict), f" ({verdict.grade})"
    change = useful(section, verdict.place)[1]
    result = section.result(verdict.place, verdict.strongest.attacker)
    known = result.leakage.get(section.main) if result else None
    blind = verdict.nulls.get(PRIOR_ONLY)
    return ClosingRow(
        defense=where,
        verdict=word_of(section, verdict) + (grade if verdict.word == "leaks" else ""),
        attack=attack_label(section, verdict.strongest.attacker),
        mean=f"{section.main} {verdict.strongest.leakage.mean:.3g}",
        blind="" if blind is None else f"{blind:.3g}",
        worst="" if known is None else f"{known.worst:.3g}",
        recovered=f"{counts[0]} of {counts[1]} {things(section)}" if counts else "",
        cost=f"{title(section.utility_name or '')} {signed(change)}" if change else "",
        refused=refused,
    )
