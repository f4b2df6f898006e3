"""Run folders for the tests of the stages."""

from pathlib import Path
from typing import Any

import pytest

from experiments.config import Plan, parse_experiment
from experiments.folder import Run
from tests.apps.cases import Make, merge


@pytest.fixture
def make_run(tmp_path: Path) -> Make:
    """``make_run(TEXT, federation={"rounds": 1}, folder="a")``: a run folder, not yet simulated."""

    def make(base: dict[str, Any], folder: str = "run", **changes: object) -> Run:
        config = parse_experiment(merge(base, changes))
        return Run.create(Plan(name=config.name, experiments=(config,)), tmp_path / folder)

    return make
