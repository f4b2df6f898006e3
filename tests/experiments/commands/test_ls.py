"""``fedsim ls``."""

import json
from pathlib import Path

import fedsim
from experiments.pipeline import execute
from experiments.report.headline import closing_table, headline
from tests.apps.cases import TEXT, Make, simulate
from tests.experiments.conftest import Said


def test_a_run_is_listed_checked_and_loaded(finished: Path, said: Said) -> None:
    (row,) = headline(finished)
    assert row[:5] == ("no defense", "leaks (verbatim)", "embedding rows", "rougeL 1", "0")
    assert row.recovered == "3 of 3 texts"
    assert said("report", finished)[1].splitlines()[-1] == closing_table([row]).splitlines()[-1]
    assert json.loads(said("report", finished, "--json")[1])["answer"] == [row._asdict()]
    (listed,) = json.loads(said("ls", finished.parent, "--json")[1])
    assert listed["state"] == "reported"
    assert listed["megabytes"] > 0
    assert "reported" in said("ls", finished.parent)[1]
    assert said("ls", finished)[1] == said("ls", finished.parent)[1]
    frames = fedsim.load(finished)
    assert set(frames.scores.attack) == {"embedding_rows", "prior_only"}
    assert set(frames.utility["round"]) == {0, 1}


def test_a_run_is_as_far_as_its_files(make_run: Make, said: Said) -> None:
    run = make_run(TEXT, federation={"rounds": 1}, defenses=[{"name": "none"}, {"name": "sign"}])
    assert "planned" in said("ls", run.root)[1]
    simulate(run)  # which opens the ledger
    assert "simulated" in said("ls", run.root)[1]
    execute(run, ("attack",), quiet=True)
    assert "attacked" in said("ls", run.root)[1]


def test_a_folder_without_runs_says_so(said: Said, tmp_path: Path) -> None:
    assert "holds no run" in said("ls", tmp_path)[2]
