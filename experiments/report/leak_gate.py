"""A gate that asks for the verdict itself: no leak above a smallest effect."""

from __future__ import annotations

from collections.abc import Iterator

from experiments.analysis.findings import Findings
from experiments.analysis.gate import where
from experiments.report.reasons import phrases
from experiments.report.statements import no_leak, word_of


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
                yield f"{where(verdict.place)}: not {no_leak(section, verdict)} found, but {said}"
    if not tested:
        yield "no attack was run, so that nothing was tested"
