"""What every learned attack is held to, whatever it learns."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from attacks.learned.learner import Learner
from attacks.learned.lti import LTI
from attacks.learned.ridge import Ridge
from fedsim.seeds import generator
from fedsim.store.capture import Observation
from fedsim.tasks.base import Task
from fedsim.types import Batch, Tensors
from tests.attacks.learned.cases import owning

Victim = Callable[..., tuple[Task, Observation]]


def measured(prepared: Tensors) -> Tensor:
    """What was measured on the rows that are learned from."""
    names = [name for name in ("mean", "deviation", "reference", "weights") if name in prepared]
    return torch.cat([prepared[name].flatten() for name in names])


@pytest.mark.some(2)
@pytest.mark.parametrize(
    "attack",
    [
        Ridge(adaptive=False),
        LTI(width=64, epochs=2, updates=32, adaptive=False),
        LTI(bins=0.1, width=64, epochs=2, updates=32, adaptive=False),
    ],
)
def test_neither_victims_nor_held_out_rows_are_learned_from(
    attack: Learner, victim: Victim, rows: Batch
) -> None:
    public = rows[:60]
    task, seen = victim(rows[100], classes=4)
    prepared = attack.prepare(seen, task, owning(public), 0)
    _, other = victim(rows[101], classes=4, client=1)
    again = attack.prepare(other, task, owning(public), 0)
    assert all(torch.equal(again[name], value) for name, value in prepared.items())
    order = torch.randperm(60, generator=generator(0, "rows"))
    changed = public.inputs.clone()
    changed[order[:6]] = 0.5
    held = attack.prepare(seen, task, owning(replace(public, inputs=changed)), 0)
    assert torch.equal(measured(held), measured(prepared))
    assert held["heldout"] != prepared["heldout"]
    changed[order[6]] = 0.5
    trained = attack.prepare(seen, task, owning(replace(public, inputs=changed)), 0)
    assert not torch.equal(measured(trained), measured(prepared))
