"""What is missing is found, ordered, run and recorded, also after an interruption."""

import json
import shutil
from pathlib import Path

import pytest

from docs import campaign, progress, recorded, tables
from docs.campaign import Ended
from docs.measured import read
from experiments.plan.config import shipped
from experiments.plan.folder import Run


@pytest.mark.slow
def test_every_shipped_experiment_is_done_or_left() -> None:
    now = progress.progress()
    suites = {name for name in shipped() if progress.members(name) != [name]}
    assert "quickstart" in suites
    assert {*now.done, *now.remaining} == shipped().keys() - suites
    assert not now.done.keys() & set(now.remaining)
    assert now.done["quickstart-text"] == ["quickstart"]


@pytest.mark.slow
def test_the_page_lists_what_is_left_alone() -> None:
    listed = [line[0].strip("`") for line in progress.rows()]
    assert listed == sorted(progress.progress().remaining)


def test_a_smaller_run_leaves_the_experiment_to_be_done(run: Run, results: Path) -> None:
    found = recorded.record(run, "new", 1.0)
    for command, done in (("fedsim run lora --set a=1", False), ("fedsim run lora", True)):
        recorded.write(found.model_copy(update={"command": command}), "new")
        now = progress.progress()
        assert ("lora" in now.done) == done
        assert ("lora" in now.remaining) == ("lora" in now.smaller) == (not done)


def test_weights_are_trained_before_their_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(campaign, "RUNS", tmp_path / "runs")
    assert progress.needs("cola-lamp-finetuned") == ["cola-finetune"]
    names = ["lora", "cola-lamp-finetuned", "cola-finetune"]
    assert campaign.ready(names) == ["cola-finetune", "lora"]
    trained = tmp_path / "runs" / "cola-finetune"
    trained.mkdir(parents=True)
    (trained / "provenance.json").touch()
    assert campaign.ready(names)[-1] == "lora"
    assert "cola-lamp-finetuned" in campaign.ready(names)


def test_attempts_add_up_until_the_run_is_recorded(
    run: Run, results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, page = run.plan.name, tmp_path / "progress.md"
    page.write_text("# Page\n")
    shutil.copytree(run.root, tmp_path / "runs" / name)
    monkeypatch.setattr(campaign, "RUNS", tmp_path / "runs")
    monkeypatch.setattr(campaign, "PAGE", page)
    monkeypatch.setattr(tables, "ROOT", tmp_path)
    monkeypatch.setattr(tables, "pages", lambda: [page])
    ends = iter(({"interrupted": 1, "report": "x"}, None, {"interrupted": 0, "report": "x"}))

    def command(*words: str) -> Ended:
        assert words[:2] == ("run", name)
        end = next(ends)
        return Ended(2 if end is None else 0, json.dumps(end) if end else "", 2.5)

    monkeypatch.setattr(campaign, "command", command)
    for _ in range(2):
        assert "not finished" in campaign.make(name)
        assert not (results / f"{name}.json").exists()
    assert campaign.make(name) == f"{name}: 8 s of CPU time"
    assert read(name).cpu_seconds == 7.5
    assert "| embedding rows |" in page.read_text()
    campaign.publish(name)
    assert page.read_text().count(f"table: {name}") == 1


def test_a_command_tells_its_time_and_status() -> None:
    done = campaign.command("show", "no-such-experiment")
    assert done.status == 2
    assert done.seconds > 0.1
