"""A small finished run, and an empty folder in place of the published results."""

from pathlib import Path

import pytest

from docs import measured, progress, recorded, sources
from experiments.analysis.summary import summarise
from experiments.pipeline import execute
from experiments.plan.config import Plan, parse_experiment
from experiments.plan.folder import STAGES, Run
from fedsim.records import ScoreRow, UtilityRow
from fedsim.store.rows import read_rows
from tests.apps.cases import TEXT, merge


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    config = parse_experiment(merge(TEXT, {"federation": {"rounds": 1}}))
    plan = Plan(name=config.name, experiments=(config,))
    made = Run.create(plan, tmp_path_factory.mktemp("run"))
    assert not execute(made, STAGES[:3], quiet=True).failed  # drawing a report takes seconds
    rows = read_rows(made.root / "scores.parquet", ScoreRow)
    utility = read_rows(made.root / "utility.parquet", UtilityRow)
    findings = summarise(rows, utility, {cell.name: cell.config for cell in made.cells})
    (made.root / "summary.json").write_text(findings.model_dump_json())
    return made


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "results"
    folder.mkdir()
    monkeypatch.setattr(recorded, "RESULTS", folder)
    monkeypatch.setattr(measured, "RESULTS", folder)
    monkeypatch.setattr(progress, "RESULTS", folder)
    monkeypatch.setattr(sources, "RESULTS", folder)
    return folder
