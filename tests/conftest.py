"""The suite's one Ray cluster, one torch thread and the same random numbers for every test."""

import random
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import typer.main
from flwr.supercore.task_identity import TaskIdentity

from experiments.plan.config import Plan, parse_experiment
from experiments.plan.folder import Run
from tests.apps.cases import IMAGES, TEXT, Make, merge
from tests.contract_cases import Cell

FAKES = Path(__file__).parent / "fakes"
"""A folder that looks like an installed package with attacks of its own."""

torch.set_num_threads(1)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Of a test marked ``some(n)`` each n-th case runs every time; the others are slow."""
    places: Counter[str] = Counter()
    for item in items:
        test = item.nodeid.partition("[")[0]
        if any(places[test] % mark.args[0] for mark in item.iter_markers("some")):
            item.add_marker(pytest.mark.slow)
        places[test] += 1


def _seed() -> None:
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)


@pytest.fixture(autouse=True, scope="module")
def _seeded_fixtures() -> None:
    """Fixtures of a file draw what they draw when it runs alone."""
    _seed()


@pytest.fixture(autouse=True)
def _seeded() -> None:
    """A test draws the same whatever ran before it."""
    _seed()


@pytest.fixture(autouse=True, scope="session")
def _commands_built_once() -> Iterator[None]:
    """Typer builds all of them again whenever one is called."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("typer.main.get_command", cache(typer.main.get_command))
        yield


@pytest.fixture
def eager_threads() -> Iterator[None]:
    """Threads take turns as often as Python can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.fixture
def flower_task(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flower makes messages inside of a task only."""
    for name in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


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


@pytest.fixture(scope="session")
def cells(tmp_path_factory: pytest.TempPathFactory) -> dict[Cell, Path]:
    """One simulated cell of each kind: two clients, one round, one example each."""
    from experiments.stages.simulate import Simulator

    found: dict[Cell, Path] = {}
    image = merge(IMAGES, {"task": {"image_size": 16}})
    normalised = {"task": {"model": "resnet20"}, "federation": {"train_mode": True}}
    bases: dict[Cell, dict[str, Any]] = {
        "image": image,
        "linear": merge(image, {"name": "small-linear", "task": {"model": "mlp"}}),
        "patches": merge(image, {"name": "small-patches", "task": {"model": "vit"}}),
        "normalised": merge(image, {"name": "small-normalised", **normalised}),
        "text": TEXT,
        "language": merge(TEXT, {"name": "small-language", "task": {"model": "tiny-gpt2"}}),
    }
    for kind, base in bases.items():
        changes = {
            "auxiliary": {"split": "public", "rows": 20},
            "federation": {"rounds": 1, "clients": 2},
        }
        config = parse_experiment(merge(base, changes))
        root = tmp_path_factory.mktemp(kind)
        run = Run.create(Plan(name=config.name, experiments=(config,)), root / "run")
        with Simulator() as simulator:
            simulator.simulate(run.cells[0])
        found[kind] = run.cells[0].folder
    return found
