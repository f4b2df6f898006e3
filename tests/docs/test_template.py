"""The Flower app of the documentation runs, is attacked by the command, and is scored."""

import importlib
import tomllib
from pathlib import Path

import pytest

import fedsim
from docs.measured import ROOT
from experiments.captures.attack_stage import attack_captures
from experiments.captures.score_stage import score_captures
from server.grids.in_process import InProcessGrid
from server.grids.local import run_server

APP = ROOT / "docs" / "template"


def test_the_template_is_audited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(APP))
    monkeypatch.setattr("audited.FOLDER", str(tmp_path))
    own = tomllib.loads((APP / "pyproject.toml").read_text())["tool"]["flwr"]["app"]
    server, client = (
        importlib.import_module(own["components"][part].partition(":")[0]).app
        for part in ("serverapp", "clientapp")
    )
    run_server(server, InProcessGrid(client, 2, own["config"]), own["config"])
    captures = fedsim.captured(tmp_path / "captures")
    attack_captures(captures, ["span"], budget=30, quiet=True)
    row = score_captures(tmp_path / "captures", tmp_path / "truth").iloc[0]
    assert row["examples"] == 3
    assert row["exact_match"] == 1 > row["exact_match (null)"]
