"""Jobs that the clock or a budget of the attack ended, through all stages."""

import re

import pytest

from experiments.pipeline import execute
from experiments.plan.folder import STAGES
from fedsim.records import CONTROLS, JobRecord
from fedsim.store.files import read_record, write_json
from tests.apps.cases import IMAGES, TEXT, Make


@pytest.mark.slow
def test_a_job_that_the_clock_ended_is_called_unfinished_everywhere(make_run: Make) -> None:
    run = make_run(
        IMAGES,
        task={"split": "train[:4]", "image_size": 16},
        federation={"rounds": 1, "clients": 1, "batch_size": 1},
        attacks=[{"name": "inverting", "steps": 100_000}, {"name": "prior_only"}],
        attack_stage={"time_budget": 0.01},
    )
    outcome = execute(run, STAGES, quiet=True)
    assert "1 unfinished" in outcome.line()
    assert outcome.failed
    (path,) = run.cells[0].folder.glob("guesses/inverting*/*.json")
    record = read_record(path, JobRecord)
    assert (record.status, record.reason[:30]) == ("timeout", "unfinished: the clock ended it")
    assert outcome.page is not None
    page = re.sub(r"<[^>]+>", " ", outcome.page.read_text(encoding="utf-8"))
    assert "1 unfinished" in page
    assert "1 job unfinished: the clock ended" in page


def test_a_control_is_a_guess_that_ended_as_the_victims_own_did(make_run: Make) -> None:
    """Three of five clients were cut short, one of them without a guess."""
    idlg = [{"name": "idlg", "steps": 3}]
    five = {"rounds": 1, "clients": 5, "client_rows": 1, "batch_size": 1}
    run = make_run(IMAGES, task={"split": "train[:5]"}, federation=five, attacks=idlg)
    execute(run, ("simulate", "attack"), quiet=True)
    for path in run.cells[0].folder.glob("guesses/idlg*/*.json"):
        record = read_record(path, JobRecord)
        if record.key.client < 3:
            kept = {"status": "timeout", "sha256": record.sha256 if record.key.client else None}
            write_json(path, record.model_copy(update=kept).sealed())
    execute(run, ("score",), quiet=True)
    rows = [row for row in run.scores if row.metric == "psnr" and row.control in CONTROLS]
    ended = {(row.client > 2, row.control): row.status for row in rows}
    assert list(ended.values()) == ["timeout", "timeout", "done", "timeout"]  # two were whole
    assert 0 < sum(row.value is None for row in rows) < 5


@pytest.mark.some(2)
@pytest.mark.parametrize("defense", [{"name": "none"}, {"name": "prune", "fraction": 0.999}])
def test_a_search_that_its_budget_ended_is_exhausted(
    make_run: Make, defense: dict[str, object]
) -> None:
    """Also where it refuses, as it might have gone on to a guess."""
    run = make_run(
        TEXT,
        task={"split": "train[:2]"},
        federation={"rounds": 1, "clients": 1, "local_steps": 1},
        defenses=[defense],
        attacks=[{"name": "span", "work": 40}, {"name": "prior_only"}],
    )
    outcome = execute(run, STAGES, quiet=True)
    assert "1 exhausted" in outcome.line()
    assert not outcome.failed
    (path,) = run.cells[0].folder.glob("guesses/span*/*.json")
    record = read_record(path, JobRecord)
    assert record.status == "exhausted"
    assert "its work budget of 40 tokens ended the search" in record.reason
    assert outcome.page is not None
    page = " ".join(re.sub(r"<[^>]+>", " ", outcome.page.read_text("utf-8")).split())
    undefended = defense["name"] == "none"
    reason = "1 job exhausted: a budget" if undefended else "its work budget of 40 tokens ended"
    assert reason in page
