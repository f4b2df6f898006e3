"""The suite's one Ray cluster, and one torch thread for every test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from experiments.plan.config import Plan, parse_experiment
from experiments.plan.folder import Run
from tests.apps.cases import Make, merge

FAKES = Path(__file__).parent / "fakes"
"""A folder that looks like an installed package with attacks of its own."""

torch.set_num_threads(1)


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the attacks of ``tests/fakes`` known by their entry points."""
    monkeypatch.syspath_prepend(str(FAKES))


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[None]:
    """Two CPUs and two GPUs that exist in Ray's books only; its workers know the fakes."""
    from attacks.scheduling.cluster import start_ray

    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(FAKES))
        stop = start_ray(cpus=2, gpus=2)
    yield
    stop()


@pytest.fixture
def make_run(tmp_path: Path) -> Make:
    """``make_run(TEXT, federation={"rounds": 1}, folder="a")``: a run folder, not yet simulated."""

    def make(base: dict[str, Any], folder: str = "run", **changes: object) -> Run:
        config = parse_experiment(merge(base, changes))
        return Run.create(Plan(name=config.name, experiments=(config,)), tmp_path / folder)

    return make
