"""The suite's one Ray cluster, and one torch thread for every test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

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
    from attacks.pool import start_ray

    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(FAKES))
        stop = start_ray(cpus=2, gpus=2)
    yield
    stop()
