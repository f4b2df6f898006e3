"""What a run says to a terminal: its answer in one line, and which defenses a gate finds open."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from experiments.analysis.evidence import Verdict
from experiments.analysis.findings import Findings, TaskFindings
from experiments.analysis.gate import where
from experiments.report.doubts import refusals
from experiments.report.naming import attack_label, bare_name
from experiments.report.reasons import phrases
from experiments.report.statements import no_leak, recovered, things, word_of
from experiments.wording.defense_names import defense_name
from fedsim.files import read_record
from fedsim.records import PRIOR_ONLY

_MOST = 3
"""Defenses named in a line."""


def headline(run: Path) -> str:
    """The strongest attack without a defense and under three, those that leak first, of every task.

    Raises:
        StoreError: the run has no report.
    """
    findings = read_record(run / "summary.json", Findings)
    return "; ".join(clause for section in findings.sections for clause in _clauses(section))


def _clauses(section: TaskFindings) -> Iterator[str]:
    verdicts = sorted(section.evidence.verdicts, key=_urgency)
    for verdict in verdicts[: _MOST + 1]:
        name = defense_name(verdict.defense, verdict.defense_options)
        where = bare_name(section) if verdict.defense == "none" else name
        yield f"{where}: {clause(section, verdict)}"
    if (more := len(verdicts) - _MOST - 1) > 0:
        yield f"and {more} more"


def _urgency(verdict: Verdict) -> tuple[bool, bool]:
    """No defense first, then what leaks."""
    return verdict.defense != "none", "leak" not in verdict.word or verdict.word == "no leak found"


def clause(section: TaskFindings, verdict: Verdict) -> str:
    """The word of a verdict, its strongest attack, and what came back."""
    if verdict.strongest is None:
        measured = any(r.leakage and section.main not in r.leakage for r in section.results)
        could = f"no attack could run{_refused(section, verdict)}"
        return f"{section.main} is not in metrics" if measured else could
    counts = recovered(section, verdict)
    value = f"{section.main} {verdict.strongest.leakage.mean:.3g}"
    blind = verdict.nulls.get(PRIOR_ONLY)
    beside = "" if blind is None else f" ({blind:.3g} by a blind guess)"
    whole = f"{counts[0]} of {counts[1]} {things(section)} recovered, " if counts else ""
    grade = f" ({verdict.grade})" if verdict.word == "leaks" else ""
    said = f"{word_of(section, verdict)}{grade}"
    best = attack_label(section, verdict.strongest.attacker)
    return f"{said}: {best}, {whole}{value}{beside}{_refused(section, verdict)}"


def _refused(section: TaskFindings, verdict: Verdict) -> str:
    """Which attacks refused every victim, and why: `` (LAMP refused: no prior)``."""
    known = refusals(section, verdict.place).items()
    said = [f"{name} refused{f': {reason}' if reason else ''}" for name, reason in known]
    return f" ({'; '.join(said)})" if said else ""


def open_verdicts(findings: Findings, defense: str | None = None) -> Iterator[str]:
    """A line for each defense that is not judged ``no leak above X found``.

    That takes an attack which leaks without a defense, so that undefended victims are held to it
    only where nothing else was attacked, or by name.

    Args:
        findings: judged with the smallest effect that is asked for.
        defense: the only one that is asked for, by its name in experiment files.
    """
    tested = 0
    for section in findings.sections:
        verdicts = section.evidence.verdicts
        every = {verdict.defense for verdict in verdicts}
        asked = {defense} if defense is not None else every - {"none"} or every
        for verdict in verdicts:
            tested += verdict.defense in asked
            if verdict.defense in asked and verdict.word not in ("no leak found", "holds by bound"):
                grade = f" ({verdict.grade})" if verdict.word == "leaks" else ""
                why = "".join(f"; {reason}" for reason in phrases(section, verdict))
                said = f"{word_of(section, verdict)}{grade}{why}"
                yield f"{where(verdict.place)}: {said} (asked: {no_leak(section, verdict)})"
    if not tested:
        yield "no attack was run, so that nothing was tested"
