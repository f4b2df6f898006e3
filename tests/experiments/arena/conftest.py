"""One sealed track of texts and one of images, which tests leave as they are."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from experiments.arena.sealing import Sealed, seal, secret_settings
from experiments.pipeline import execute
from experiments.plan.config import Plan, parse_experiment
from experiments.plan.folder import Run
from experiments.plan.overrides import override
from tests.apps.cases import merge

FEDERATION = {"engine": "in-process", "clients": 6, "batch_size": 1}
TEXTS: dict[str, Any] = {
    "name": "toy-texts",
    "task": {
        "model": "tiny-gpt2",
        "dataset": "sentences",
        "split": "drawn@1[:60]",
        "heldout_rows": 4,
    },
    "auxiliary": {"split": "public", "rows": 20},
    "federation": FEDERATION,
}
IMAGES: dict[str, Any] = {
    "name": "toy-images",
    "task": {
        "model": "mlp",
        "dataset": "shapes",
        "split": "drawn@1[:12]",
        "image_size": 8,
        "heldout_rows": 4,
    },
    "federation": FEDERATION,
}
MEMBERS = merge(
    IMAGES,
    {
        "name": "toy-members",
        "task": {"heldout_rows": 60},
        "federation": {"batch_size": 2},
        "candidates": {"fresh": 20},
    },
)


def sealed_track(table: dict[str, Any], root: Path) -> Sealed:
    """Simulate under a secret seed, and seal."""
    plan = Plan(name=table["name"], experiments=(parse_experiment(table),))
    config = parse_experiment(override(merge(table, {}), secret_settings(plan)))
    run = Run.create(Plan(name=config.name, experiments=(config,)), root / "run")
    execute(run, ("simulate",), quiet=True)
    return seal(run, root)


@pytest.fixture(scope="session")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Sealed:
    """Six clients of a small GPT-2, a text each."""
    return sealed_track(TEXTS, tmp_path_factory.mktemp("texts"))


@pytest.fixture(scope="session")
def images(tmp_path_factory: pytest.TempPathFactory) -> Sealed:
    """Six clients of an MLP, an image each."""
    return sealed_track(IMAGES, tmp_path_factory.mktemp("images"))


@pytest.fixture(scope="session")
def members(tmp_path_factory: pytest.TempPathFactory) -> Sealed:
    """Six clients of an MLP, two images each, half of which are among the candidates."""
    return sealed_track(MEMBERS, tmp_path_factory.mktemp("members"))


@pytest.fixture
def refused(said: Callable[..., tuple[object, str, str]]) -> Callable[..., str]:
    """The one line of a command that ends with exit code 2."""

    def run(*arguments: object) -> str:
        code, out, error = said(*arguments)
        assert (code, out) == (2, ""), (code, out, error)
        assert error.count("\n") == 1
        return error

    return run
