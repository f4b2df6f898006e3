"""Replies whose facts are open: a reading that was cut short is said of the one that is given."""

import time
from contextlib import nullcontext
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import fedsim
from attacks.base import Attack, Job, Reconstruction
from attacks.foreign import readings
from attacks.foreign.readings import OpenReply, best_reading
from fedsim.errors import CannotAttack
from fedsim.knowledge import Knowledge
from fedsim.store.capture import CaptureKey, Observation
from fedsim.tasks.base import Task
from fedsim.types import Batch

TASK: Any = SimpleNamespace(
    modality="text", spec=SimpleNamespace(kind="text-classification", target="class")
)
SEEN = Observation(
    CaptureKey(round=1, client=0),
    {"w": torch.zeros(1, 2)},
    {"w": torch.ones(1, 2)},
    "gradient",
    Knowledge(),
)


@dataclass(frozen=True)
class CutShort(Attack):
    """Its first reading, which counts no examples, is cut short; others end by themselves."""

    refuses: bool = True
    by_clock: bool = False

    def guess(
        self, observation: Observation, task: Task, rng: torch.Generator, job: Job
    ) -> Reconstruction:
        first = observation.knowledge.num_examples is None
        if self.by_clock and first:
            while not job.expired:
                time.sleep(0.01)
        if self.refuses:
            error = CannotAttack("no sentence lies in the span", "Give it more.")
            error.ended = "exhausted" if first and not self.by_clock else ""
            raise error
        level: Any = "guess" if first else "in_span"
        exhausted = first and not self.by_clock
        batch = Batch(torch.zeros(1, 2), torch.tensor([-1]))
        return Reconstruction(batch, confidence=(level,), exhausted=exhausted)


@pytest.fixture
def _any_task(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readings, "check_suits", lambda *_: None)
    monkeypatch.setattr(readings, "_sign", lambda *_: None)
    monkeypatch.setattr(readings, "smoothing_note", lambda *_: "")


@pytest.mark.usefixtures("_any_task")
def test_a_reading_that_its_budget_ended() -> None:
    with pytest.raises(CannotAttack) as refusal:
        best_reading(OpenReply(SEEN, 1), TASK, "cut", CutShort(), Job())
    assert refusal.value.ended == "exhausted"
    guess = best_reading(OpenReply(SEEN, 1), TASK, "cut", CutShort(refuses=False), Job())
    assert guess.confidence == ("in_span",)
    assert guess.exhausted


@pytest.mark.usefixtures("_any_task")
@pytest.mark.parametrize("refuses", [True, False])
def test_a_reading_that_the_clock_ended(refuses: bool) -> None:
    job = Job(deadline=time.monotonic() + 0.2)
    attack = CutShort(refuses, by_clock=True)
    with pytest.raises(CannotAttack) if refuses else nullcontext():
        best_reading(OpenReply(SEEN, 1), TASK, "cut", attack, job)
    assert job.late


def test_a_number_that_is_only_tried_puts_no_row_in_a_full_span() -> None:
    """As where a client claims its batches: 64 rows of a table span all of its columns."""
    rng = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(14, 32), nn.ReLU(), nn.Linear(32, 3))
    rows, labels = torch.rand(64, 14, generator=rng), torch.arange(64) % 3
    loss = F.cross_entropy(net(rows), labels)
    gradients = torch.autograd.grad(loss, list(net.parameters()))
    victim = fedsim.Update.of(net, gradients=gradients, loss=classes, input_shape=(14,))
    guess = fedsim.attack(victim, "spear", samples=4096, quiet=True)
    assert set(guess.confidence) == {"guess"}


def classes(network: Any, batch: Any) -> torch.Tensor:
    return F.cross_entropy(network(batch.inputs), batch.labels)
