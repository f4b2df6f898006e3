"""What a run came to, read from its folder once, and ``summary.json``, which judges its scores."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from experiments.analysis.findings import Findings
from experiments.analysis.summary import summarise
from experiments.bounds.audit import AuditRecord, AuditRow
from experiments.bounds.records import BudgetLimit, LimitsRecord
from experiments.plan.config import VerdictRule
from experiments.plan.folder import read_rules
from experiments.report.brackets import bounded_by, budgets
from experiments.stages.coverage import Coverage
from experiments.stages.gallery import Shown, read_gallery
from experiments.stages.progress import scored_progress
from experiments.stages.search_errors import read_searches
from fedsim.api.run import RunFolder
from fedsim.config.cell import CellConfig
from fedsim.records import ScoreRow
from fedsim.store.files import read_record, write_bytes
from fedsim.tasks import from_elsewhere


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResults:
    """What a run, or some of its cells, came to; every section of the page is made of it.

    Attributes:
        name: of the run.
        provenance: what each stage noted.
        partial: how many jobs are settled, in words; empty if all are.
        findings: the verdicts and what they rest on, of the whole run.
        cells: those of the findings, by name.
        foreign: the captures are another application's.
        members: scores of the attacks that infer membership.
        coverage: rows recovered so far, by round.
        limits: of ``fedsim limits``; None before it was run.
        budgets: what replies tell at most, by cell.
        audits: of ``fedsim audit``; none before it was run.
        examples: those of the gallery; none where the page may not show any.
    """

    name: str
    provenance: Mapping[str, Any]
    partial: str
    findings: Findings
    cells: Mapping[str, CellConfig]
    foreign: bool
    members: Sequence[ScoreRow]
    coverage: Sequence[Coverage]
    limits: LimitsRecord | None
    budgets: Mapping[str, BudgetLimit]
    audits: Sequence[AuditRow]
    examples: Sequence[Shown]

    def of(self, names: Collection[str]) -> RunResults:
        """What these cells alone came to."""
        mine, limits = frozenset(names), self.limits
        if limits is not None:
            limits = LimitsRecord(
                ranks=tuple(limit for limit in limits.ranks if limit.cell in mine),
                successes=tuple(limit for limit in limits.successes if limit.cell in mine),
                budgets=tuple(limit for limit in limits.budgets if limit.cell in mine),
            )
        return replace(
            self,
            cells={name: self.cells[name] for name in names},
            members=[row for row in self.members if row.cell in mine],
            coverage=[row for row in self.coverage if row.cell in mine],
            limits=limits,
            budgets={name: limit for name, limit in self.budgets.items() if name in mine},
            audits=[row for row in self.audits if row.cell in mine],
            examples=[example for example in self.examples if example.cell in mine],
        )


def read_results(run: Path, findings: Findings, *, examples: bool) -> RunResults:
    """Read the folder of a scored run, each file once.

    Args:
        run: the folder.
        findings: what its scores show.
        examples: read the private examples of the gallery, too.

    Raises:
        StoreError: a file of the run is missing or cannot be read.
    """
    folder = RunFolder(run)
    provenance, limits = folder.provenance, folder.record("limits.json", LimitsRecord)
    cells = _cells(run, [name for section in findings.sections for name in section.cells])
    audit = folder.record("audit.json", AuditRecord)
    return RunResults(
        name=folder.name,
        provenance=provenance,
        partial=str(scored_progress(provenance)),
        findings=findings,
        cells=cells,
        foreign=_foreign(run, cells),
        members=folder.membership,
        coverage=folder.rows("coverage", Coverage),
        limits=limits,
        budgets=budgets(run, cells, limits),
        audits=audit.rows if audit else (),
        examples=read_gallery(run) if examples else (),
    )


def judged(run: Path, rules: Mapping[str, VerdictRule]) -> Findings:
    """What the scores of a run show by these rules, which stand by the name of the experiment.

    Raises:
        StoreError: a file of the run is missing or cannot be read.
    """
    folder = RunFolder(run)
    scores, utility = folder.scores, folder.utility
    cells = _cells(run, sorted({row.cell for row in scores} | {row.cell for row in utility}))
    limits = folder.record("limits.json", LimitsRecord)
    findings = summarise(
        scores,
        utility,
        cells,
        rules=rules,
        membership=folder.membership,
        searches=read_searches(run),
        bounded=bounded_by(budgets(run, cells, limits)),
    )
    if not _foreign(run, cells):
        return findings
    sections = [section.model_copy(update={"foreign": True}) for section in findings.sections]
    return findings.model_copy(update={"sections": tuple(sections)})


def _cells(run: Path, names: Iterable[str]) -> dict[str, CellConfig]:
    return {name: read_record(run / name / "cell.json", CellConfig) for name in names}


def _foreign(run: Path, cells: Iterable[str]) -> bool:
    return any(from_elsewhere(run / name / "captures") for name in cells)


def write_summary(run: Path) -> Findings:
    """Judge a run by its own rules and write ``summary.json``; raises as ``judged`` does."""
    findings = judged(run, read_rules(run))
    write_bytes(run / "summary.json", canonical(findings))
    return findings


def canonical(summary: Findings) -> bytes:
    """Sealed strict JSON with sorted keys: equal summaries give equal bytes."""
    text = json.dumps(json.loads(summary.model_dump_json()), sort_keys=True)
    ordered = Findings.model_validate_json(text)  # as a reader has it, whose hash must be the same
    data = json.loads(ordered.sealed().model_dump_json())
    return (json.dumps(data, indent=1, sort_keys=True, allow_nan=False) + "\n").encode()
