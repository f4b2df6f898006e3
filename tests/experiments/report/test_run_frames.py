"""A run as data frames."""

import re
from pathlib import Path
from typing import Any

import pytest

import fedsim
from experiments.analysis.findings import Findings
from experiments.pipeline import execute
from experiments.plan.folder import STAGES
from fedsim.errors import StoreError
from fedsim.records import OTHER_CLIENT
from fedsim.store.files import read_record
from tests.apps.cases import IMAGES, Make


def test_the_table_of_a_run_is_the_reports(finished: Path, copied: Path) -> None:
    table = fedsim.load(finished).table()
    (section,) = read_record(finished / "summary.json", Findings).sections
    verdicts = section.evidence.verdicts
    assert len(table) == len(verdicts)
    assert table.leakage.tolist() == [
        verdict.strongest.leakage.mean for verdict in verdicts if verdict.strongest is not None
    ]
    assert r"\toprule" in table.to_latex()
    (copied / "report/tables/defenses.csv").unlink(missing_ok=True)
    with pytest.raises(StoreError, match="Run fedsim report"):
        fedsim.load(copied).table()


@pytest.mark.slow
def test_leakage_and_utility_are_drawn_by_round(finished: Path, make_run: Make) -> None:
    with pytest.raises(StoreError, match="two rounds or more"):
        fedsim.load(finished).plot_rounds()
    attacks = [{"name": "inverting", "steps": 2}]
    run = make_run(IMAGES, attacks=attacks, federation={"rounds": 2})
    execute(run, STAGES, quiet=True)
    frames = fedsim.load(run.root)
    leakage, utility = frames.plot_rounds().axes
    assert (leakage.get_ylabel(), utility.get_xlabel()) == ("PSNR (dB)", "round")
    scores = frames.scores[frames.scores.metric == "psnr"]
    means = scores.groupby("round").value.mean().tolist()
    assert list(leakage.lines[0].get_ydata()) == pytest.approx(means)
    with pytest.raises(StoreError, match="rouge1 was not measured"):
        frames.plot_rounds("rouge1")


def test_the_documented_means_are_those_of_the_report(finished: Path) -> None:
    page = (Path(__file__).parents[3] / "docs/how-to/results.md").read_text()
    (block,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    block = block.replace("runs/quickstart", str(finished)).replace("print(", "means = (")
    names: dict[str, Any] = {}
    exec(block, names)
    (section,) = read_record(finished / "summary.json", Findings).sections
    reported = {
        (result.defense, result.attack, metric): found.mean
        for result in section.results
        if not result.is_control
        for metric, found in result.leakage.items()
    }
    assert names["means"].dropna().to_dict() == pytest.approx(reported)
    assert len(reported) > 10
    controls = set(fedsim.load(finished, controls=True).scores.control)
    assert {"none", OTHER_CLIENT} <= controls
    assert set(fedsim.load(finished).scores.control) == {"none"}
