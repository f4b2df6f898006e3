"""Rows of other data get classes of the task."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from attacks.learned.auxiliary_rows import with_classes
from fedsim.store.capture import Observation
from fedsim.tasks.base import Task
from fedsim.types import Batch

Victim = Callable[..., tuple[Task, Observation]]


@pytest.mark.parametrize(
    ("labels", "kept"),
    [(torch.arange(400) % 4, True), (torch.arange(400) % 5, False), (torch.zeros(400), False)],
)
def test_classes_of_other_data_are_drawn(
    victim: Victim, pictures: Callable[..., Batch], labels: torch.Tensor, kept: bool
) -> None:
    task, _ = victim(pictures(1, 0), classes=4)
    rows = Batch(torch.rand(400, 3, 16, 16), labels.long())
    batch = with_classes(rows, task, 0)
    assert torch.equal(batch.labels, rows.labels) == kept
    assert batch.inputs is rows.inputs
    assert batch.labels.bincount().tolist() == pytest.approx([100] * 4, rel=0.3)
    assert torch.equal(with_classes(rows, task, 0).labels, batch.labels)
    assert torch.equal(with_classes(rows, task, 1).labels, batch.labels) == kept
