"""The options that all stages share."""

import sys
from pathlib import Path

import pytest

from tests.apps.mistakes import BASE
from tests.experiments.conftest import Said


def test_more_workers_than_cores_are_remarked_on(
    said: Said, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    monkeypatch.setattr("experiments.pipeline.execute", lambda *_, **__: sys.exit(0))
    monkeypatch.chdir(tmp_path)
    Path("small.toml").write_text(BASE)
    command = ("run", "small.toml", "--engine", "ray", "--workers")
    assert "8 workers share 2 cores" in said(*command, "8")[2]
    assert said(*command, "2")[2] == ""
