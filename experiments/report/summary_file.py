"""What the scores of a run show, and ``summary.json``, as other commands read it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from experiments.analysis.findings import Findings
from experiments.analysis.summary import summarise
from experiments.plan.config import VerdictRule
from experiments.plan.folder import read_rules
from experiments.report.brackets import bounded_by, budgets, read_limits
from experiments.stages.search_errors import read_searches
from fedsim.api.run import RunFolder
from fedsim.config.cell import CellConfig
from fedsim.store.files import read_record, write_bytes
from fedsim.tasks import from_elsewhere


def judged(run: Path, rules: Mapping[str, VerdictRule]) -> Findings:
    """What the scores of a run show by these rules, which stand by the name of the experiment.

    Raises:
        StoreError: a file of the run is missing or cannot be read.
    """
    folder = RunFolder(run)
    scores, utility = folder.scores, folder.utility
    cells = {
        name: read_record(run / name / "cell.json", CellConfig)
        for name in sorted({row.cell for row in scores} | {row.cell for row in utility})
    }
    findings = summarise(
        scores,
        utility,
        cells,
        rules=rules,
        membership=folder.membership,
        searches=read_searches(run),
        bounded=bounded_by(budgets(run, cells, read_limits(run))),
    )
    if not any(from_elsewhere(run / name / "captures") for name in cells):
        return findings
    sections = [section.model_copy(update={"foreign": True}) for section in findings.sections]
    return findings.model_copy(update={"sections": tuple(sections)})


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
