"""The answer of a run in one line, for the terminal."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from experiments.analysis.evidence import Verdict
from experiments.analysis.findings import Findings, TaskFindings
from experiments.report.naming import attack_label
from experiments.report.statements import recovered, things, word_of
from experiments.wording.defense_names import defense_name
from fedsim.files import read_record

_MOST = 3
"""Defenses named in a line."""


def headline(run: Path) -> str:
    """The strongest attack without a defense and under the first defenses, of every task.

    Raises:
        StoreError: the run has no report.
    """
    findings = read_record(run / "summary.json", Findings)
    return "; ".join(clause for section in findings.sections for clause in _clauses(section))


def _clauses(section: TaskFindings) -> Iterator[str]:
    verdicts = sorted(section.evidence.verdicts, key=lambda verdict: verdict.defense != "none")
    for verdict in verdicts[: _MOST + 1]:
        name = defense_name(verdict.defense, verdict.defense_options)
        yield f"{'no defense' if verdict.defense == 'none' else name}: {clause(section, verdict)}"


def clause(section: TaskFindings, verdict: Verdict) -> str:
    """The word of a verdict, its strongest attack, and what came back."""
    if verdict.strongest is None:
        measured = any(r.leakage and section.main not in r.leakage for r in section.results)
        return f"{section.main} is not in metrics" if measured else "no attack ran"
    counts = recovered(section, verdict)
    value = f"{section.main} {verdict.strongest.leakage.mean:.3g}"
    whole = f"{counts[0]} of {counts[1]} {things(section)} recovered, " if counts else ""
    grade = f" ({verdict.grade})" if verdict.word == "leaks" else ""
    said = f"{word_of(section, verdict)}{grade}"
    return f"{said}: {attack_label(section, verdict.strongest.attacker)}, {whole}{value}"
