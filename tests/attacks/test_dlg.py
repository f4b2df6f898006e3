"""DLG recovers pixels and labels; its guess, budget and restarts behave as said."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from attacks.base import Job
from attacks.distance import squared_error
from attacks.dlg import DLG, IDLG
from attacks.replay import observed_gradient, replay
from fedsim.capture import Observation
from fedsim.errors import CannotAttack
from fedsim.tasks.base import Task
from fedsim.types import Batch

Victim = Callable[..., tuple[Task, Observation]]
Pictures = Callable[..., Batch]


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("step_size", [None, 0.5])
def test_recovers_image_and_label(
    victim: Victim, pictures: Pictures, step_size: float | None
) -> None:
    batch = pictures(1, 6, channels=1)
    task, seen = victim(batch, step_size=step_size)
    (found,) = DLG().reconstruct([seen], task, [rng()], Job())
    assert found.guess.labels.tolist() == [6]
    assert (found.guess.inputs - batch.inputs).square().mean() < 1e-4
    assert found.guess.inputs.dtype == torch.float32
    assert not found.expired
    assert found.steps == len(found.trace) < 300


def test_recovers_a_colour_image(victim: Victim, pictures: Pictures) -> None:
    batch = pictures(1, 3, size=32)
    task, seen = victim(batch)
    (found,) = DLG().reconstruct([seen], task, [rng()], Job())
    assert found.guess.labels.tolist() == [3]
    assert (found.guess.inputs - batch.inputs).square().mean() < 1e-3
