"""Interrupted jobs are left out of the scores, said, and made up for by the next command."""

import json
import sqlite3
import sys
from contextlib import closing

import pytest

from experiments.pipeline import execute
from experiments.plan.folder import STAGES
from fedsim.errors import StoreError
from fedsim.store.capture import CaptureKey
from tests.apps.cases import IMAGES, Make
from tests.experiments.stages.cases import scores


def test_a_job_without_its_model_is_not_a_zero(make_run: Make) -> None:
    run = make_run(IMAGES, attacks=[{"name": "inverting", "steps": 2}], federation={"rounds": 1})
    execute(run, ("simulate",), quiet=True)
    models = run.cells[0].captures.root / "models"
    models.rename(run.root / "away")
    outcome = execute(run, ("attack",), quiet=True)
    assert outcome.failed
    (run.root / "away").rename(models)

    scored = execute(run, ("score",), quiet=True)
    assert {(row["status"], row["value"]) for row in scores(run.root)} == {("interrupted", None)}
    said = f"3 interrupted and not scored ({outcome.interrupted[0]}): "
    assert f"{said}correct the cause and run fedsim run {run.root}" in scored.line()

    whole = execute(run, STAGES[:3], quiet=True)
    assert (whole.failed, whole.interrupted, dict(whole.statuses)) == (False, [], {"done": 3})
    assert {row["status"] for row in scores(run.root)} == {"done"}
    assert all(row["value"] is not None for row in scores(run.root))


def test_an_attack_stage_that_was_stopped_gives_a_partial_report(make_run: Make) -> None:
    attacks = [{"name": "inverting", "steps": 2}, {"name": "prior_only"}]
    run = make_run(IMAGES, attacks=attacks, federation={"rounds": 1})
    execute(run, STAGES[:2], quiet=True)
    lost = sorted(run.root.glob("*/guesses/*/*.json"))[1:]
    for path in lost:
        path.rename(path.with_suffix(".away"))
    with pytest.raises(StoreError, match="the record of a job that ended is missing"):
        execute(run, ("score",), quiet=True)
    with closing(sqlite3.connect(run.root / "jobs.sqlite")) as ledger, ledger:
        # As after Ctrl-C in the second job.
        for path in lost:
            keys = (path.parent.name, *CaptureKey.parse(path.stem).model_dump().values())
            ledger.execute(
                "UPDATE job SET state = 'queued' WHERE label = ? AND round = ? AND client = ?", keys
            )

    said = f"partial: 1 of {1 + len(lost)} jobs"
    assert said in execute(run, ("score",), quiet=True).line()
    values = {row["status"]: row["value"] is None for row in scores(run.root)}
    assert values == {"done": False, "interrupted": True}
    reported = execute(run, ("report",), quiet=True)
    assert (said in reported.line(), reported.table()["partial"]) == (True, said)
    assert f"{said.capitalize()}." in (run.root / "report/index.html").read_text()
    tables = list((run.root / "report/tables").iterdir())
    assert {path.suffix for path in tables} == {".csv"}
    texts = {path.name: path.read_text().lower() for path in tables}
    # A CSV file without rows is its header.
    assert [n for n, t in texts.items() if said not in t and not t.endswith(",jobs run\n")] == []

    whole = execute(run, STAGES, quiet=True)
    assert "partial" not in whole.line()
    assert "Partial: " not in (run.root / "report/index.html").read_text()
    assert {row["status"] for row in scores(run.root)} == {"done"}


@pytest.mark.slow
def test_each_stage_keeps_the_command_that_ran_it(
    make_run: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(IMAGES)
    for arguments, stages in (["run", "x"], STAGES[:-1]), (["report"], STAGES[-1:]):
        monkeypatch.setattr(sys, "argv", ["fedsim", *arguments])
        execute(run, stages, quiet=True)
    noted = json.loads((run.root / "provenance.json").read_text())
    assert noted["commands"] == dict.fromkeys(STAGES[:-1], "fedsim run x") | {
        "report": "fedsim report"
    }
    assert noted["devices"] == {stage: ["cpu"] for stage in STAGES}
    assert noted["commits"].keys() == noted["seconds"].keys() == set(STAGES)
