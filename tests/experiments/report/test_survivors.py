"""No mean is taken over survivors: a refused and a failed victim count in every mean."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import fedsim
from docs.recorded import record
from experiments.analysis.differences import compare
from experiments.analysis.findings import Findings
from experiments.plan.folder import Run
from experiments.report.headline import headline
from fedsim.records import ScoreRow
from fedsim.store.files import read_record
from fedsim.store.rows import read_rows, write_rows
from tests.experiments.conftest import Said


@pytest.fixture
def planted(copied: Path, said: Said) -> tuple[Path, float]:
    """A run whose attack read client 0, refused client 1 and failed on client 2; its ROUGE-L."""
    path = copied / "scores.parquet"
    rows = read_rows(path, ScoreRow)
    ends: dict[int, dict[str, Any]] = {
        1: {"status": "skipped", "reason": "it was refused", "value": None},
        2: {"status": "failed", "reason": "it failed", "value": 0.0},
    }
    written = []
    for row in rows:
        if (row.attack, row.control) == ("embedding_rows", "none"):
            row = replace(row, **ends.get(row.client, {}), certified=None)
        elif row.attack == "prior_only" and row.metric == "rougeL":
            row = replace(row, value=0.3)
        written.append(row)
    write_rows(path, ScoreRow, written)
    assert said("report", copied)[0] == 0
    return copied, (1 + 0.3 + 0) / 3


def test_a_refused_and_a_failed_victim_count_in_every_mean(
    planted: tuple[Path, float], finished: Path, said: Said
) -> None:
    run, mean = planted
    (section,) = read_record(run / "summary.json", Findings).sections
    (result,) = [r for r in section.results if (r.attack, r.control) == ("embedding_rows", "none")]
    assert result.leakage["rougeL"].mean == pytest.approx(mean)
    assert (result.jobs["skipped"], result.jobs["failed"]) == (1, 1)
    (verdict,) = section.evidence.verdicts
    assert verdict.strongest is not None
    assert verdict.strongest.leakage.mean == pytest.approx(mean)
    assert [row.mean for row in headline(run)] == [f"rougeL {mean:.3g}"]
    # Tables for a paper, and on the page.
    assert fedsim.load(run).table().leakage.tolist() == pytest.approx([mean])
    page = (run / "report" / "index.html").read_text(encoding="utf-8")
    assert f"{mean:.2f}" in page
    assert "it was refused" in page
    assert "it failed" in page
    # The result files, from which README and documentation follow.
    recorded = record(Run.open(run), "planted", None)
    (row,) = [
        row
        for row in recorded.rows
        if row.setting.get("attack") == "embedding rows" and row.measure == "ROUGE-L"
    ]
    assert row.mean == pytest.approx(mean, rel=1e-4)
    assert "1 skipped, 1 failed" in recorded.notes[-1]
    # Comparisons and the gate.
    (change,) = [c for c in compare(finished, run).changes if "ROUGE-L" in c.what][:1]
    assert (change.before, change.after) == pytest.approx((1.0, mean))
    over, under = (f"rougeL={mean + shift}" for shift in (0.01, -0.01))
    lost = "under no defense: 1 job failed\n"
    assert said("check", run, "--max", over, "--compare", "mean")[1].startswith(lost)
    assert f"rougeL {mean:.3g}, above" in said("check", run, "--max", under, "--compare", "mean")[1]
