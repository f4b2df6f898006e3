"""Rows of other data get classes of the task."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from attacks.learned.auxiliary_rows import with_classes, with_other_classes
from fedsim.capture import Observation
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
    found = with_classes(rows, task, 0)
    assert torch.equal(found.labels, rows.labels) == kept
    assert found.inputs is rows.inputs
    assert found.labels.bincount().tolist() == pytest.approx([100] * 4, rel=0.3)
    assert torch.equal(with_classes(rows, task, 0).labels, found.labels)
    assert torch.equal(with_classes(rows, task, 1).labels, found.labels) == kept


def test_copies_have_other_classes() -> None:
    rows = Batch(torch.rand(400, 1, 2, 2), torch.arange(400) % 5)
    found = with_other_classes(rows, 5, 3, 0)
    copies = found[torch.arange(400, 1600)]
    assert len(found) == 1600
    assert torch.equal(found.inputs, rows.inputs.repeat(4, 1, 1, 1))
    assert torch.equal(found.labels[:400], rows.labels)
    shifts = (copies.labels - rows.labels.repeat(3)) % 5
    assert shifts.bincount().tolist() == pytest.approx([0, 300, 300, 300, 300], abs=60)
    assert with_other_classes(rows, 5, 0, 0) is rows
