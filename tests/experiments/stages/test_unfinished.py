"""Jobs that the clock ended, through all stages."""

import re

from experiments.pipeline import execute
from experiments.plan.folder import STAGES
from fedsim.files import read_record
from fedsim.records import JobRecord
from tests.apps.cases import IMAGES, Make


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
