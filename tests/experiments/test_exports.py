"""The numbers of a run in other tools; trackers are tested where they are installed."""

import json
import sqlite3
from pathlib import Path

import pandas as pd
import pytest

import fedsim
from experiments.commands.export import logs
from fedsim.data import DATASETS
from tests.experiments.conftest import Said


def test_a_cell_is_logged_by_round(finished: Path) -> None:
    (log,) = logs(fedsim.load(finished))
    assert log.options["defense"] == "none"
    assert json.loads(log.options["embedding_rows"])
    assert set(log.rounds) == {0, 1}
    assert log.rounds[1]["embedding_rows/rougeL"] == 1.0
    assert log.rounds[1]["prior_only/rougeL"] < 0.5
    assert "utility/loss" in log.rounds[0]
    assert "utility/epsilon" not in log.rounds[1]


def test_an_attack_with_several_options_is_numbered(finished: Path) -> None:
    frames = fedsim.load(finished)
    chosen = frames.scores.attack == "prior_only"
    frames.scores.loc[chosen, "attack"] = "embedding_rows"
    frames.scores.loc[chosen, "attack_options"] = '{"a": 1}'
    (log,) = logs(frames)
    assert log.options["embedding_rows"] == '{"a": 1}'
    assert log.rounds[1]["embedding_rows/rougeL"] < 0.5
    assert log.rounds[1]["embedding_rows.2/rougeL"] == 1.0


def test_json_and_datasets_hold_every_row_and_no_private_text(copied: Path, said: Said) -> None:
    from datasets import load_from_disk

    scores = fedsim.load(copied, controls=True).scores
    assert said("export", copied, "--to", "json")[:2] == (0, f"json: {copied / 'export'}\n")
    lines = (copied / "export" / "scores.jsonl").read_text().splitlines()
    values = pd.Series([json.loads(line)["value"] for line in lines], dtype=float)
    pd.testing.assert_series_equal(values, scores.value, check_names=False)
    assert said("export", copied, "--to", "datasets")[0] == 0
    stored = load_from_disk(copied / "export" / "scores")
    assert stored.column_names == list(scores)
    private = DATASETS["sentences"]().read("train", range(200))[0]
    text = (copied / "export" / "scores.jsonl").read_text()
    assert not any(str(sentence) in text for sentence in private)


def test_unknown_and_missing_tools_are_named(
    copied: Path, said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "Did you mean 'mlflow'?" in said("export", copied, "--to", "mlfow")[2]
    monkeypatch.setitem(__import__("sys").modules, "mlflow", None)
    code, _, error = said("export", copied, "--to", "mlflow")
    assert (code, "pip install -e '.[trackers]'" in error) == (2, True)


@pytest.mark.slow
def test_tensorboard_reads_what_was_exported(copied: Path, said: Said) -> None:
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    assert said("export", copied, "--to", "tensorboard")[0] == 0
    (cell,) = (copied / "tensorboard").iterdir()
    read = events.EventAccumulator(str(cell))
    read.Reload()
    (point,) = read.Scalars("embedding_rows/rougeL")
    assert (point.step, point.value) == (1, 1.0)


@pytest.mark.slow
def test_mlflow_holds_what_was_exported(copied: Path, said: Said, tmp_path: Path) -> None:
    pytest.importorskip("mlflow")
    assert said("export", copied, "--to", "mlflow", "--out", tmp_path / "flow")[0] == 0
    with sqlite3.connect(tmp_path / "flow" / "mlflow.db") as stored:
        wanted = "SELECT value, step FROM metrics WHERE key = 'embedding_rows/rougeL'"
        assert stored.execute(wanted).fetchall() == [(1.0, 1)]
        named = stored.execute("SELECT value FROM params WHERE key = 'defense'").fetchall()
    assert named == [("none",)]


@pytest.mark.slow
def test_wandb_keeps_an_export_offline(
    copied: Path, said: Said, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    (tmp_path / "tracked").mkdir()
    assert said("export", copied, "--to", "wandb", "--out", tmp_path / "tracked")[0] == 0
    (stored,) = (tmp_path / "tracked").rglob("*.wandb")
    assert b"embedding_rows/rougeL" in stored.read_bytes()
