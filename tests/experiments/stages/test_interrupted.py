"""Interrupted jobs are left out of the scores, said, and made up for by the next command."""

from __future__ import annotations

from experiments.pipeline import execute
from experiments.plan.folder import STAGES
from tests.apps.cases import IMAGES, Make
from tests.experiments.stages.test_determinism import scores


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
