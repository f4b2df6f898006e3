"""Clients of small text models in memory, what they send, and the texts that it holds."""

import os
from collections import Counter
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
import torch
from torch import nn

from attacks.base import Job, Reconstruction
from attacks.solved.embedding_rows import EmbeddingRows
from clients.train import LocalTrainer
from fedsim.config.cell import TaskConfig
from fedsim.config.federation import FederationConfig
from fedsim.data.rows import load_rows
from fedsim.defenses import build_chain
from fedsim.knowledge import Knowledge
from fedsim.store.capture import CaptureKey, Observation
from fedsim.tasks import initial_weights, make_task
from fedsim.tasks.base import Task, state
from fedsim.types import Batch, Rows, Tensors

KEY = CaptureKey(round=1, client=0)


class Countdown(Job):
    """A job whose clock has run out when an attack has asked it so often: on any machine alike."""

    def __init__(self, asks: int) -> None:
        super().__init__()
        self.asks, self.asked = asks, 0

    @property
    def expired(self) -> bool:
        self.asked += 1
        self.deadline = 0.0 if self.asked > self.asks else self.deadline
        return super().expired


WORD, PLACE = (f"bert.embeddings.{name}_embeddings.weight" for name in ("word", "position"))


@dataclass
class Victim:
    """A client of a model that was trained for a few steps, and what the attack makes of it."""

    task: Task
    rows: Rows
    sent: Tensors

    def capture(
        self, rows: list[int], *defenses: dict[str, object], **federation: Any
    ) -> tuple[Observation, Batch]:
        options: dict[str, Any] = {"batch_size": len(rows), "engine": "in-process", **federation}
        trainer = LocalTrainer(
            self.task,
            FederationConfig(**options),
            build_chain(defenses, "defenses"),
            0,
            torch.device("cpu"),
        )
        update = trainer.run(self.sent, self.rows.take(rows), 1, 0)
        knowledge = Knowledge(num_examples=len(rows))
        return Observation(KEY, self.sent, update.tensors, update.kind, knowledge), update.batch

    def attack(self, seen: Observation, attack: EmbeddingRows | None = None) -> Reconstruction:
        (guess,) = (attack or EmbeddingRows()).reconstruct(
            [seen], self.task, [torch.Generator()], Job()
        )
        return guess


@cache
def trained(model: str, steps: int) -> Victim:
    """A built-in model after steps on eight public sentences each, the same to all tests."""
    rows = load_rows("sentences", "train", modality="text")
    config = TaskConfig(model=model, dataset="sentences")
    task = make_task(config, rows)
    network = task.model(initial_weights(task, config, 0))
    return taught(task, rows, network, steps, lr=0.001)


def taught(task: Task, rows: Rows, network: nn.Module, steps: int, lr: float) -> Victim:
    """After steps of Adam on eight sentences each, of the weights that are trained."""
    weights = [weight for weight in network.parameters() if weight.requires_grad]
    optimizer = torch.optim.Adam(weights, lr=lr)
    for step in range(steps):
        optimizer.zero_grad()
        batch = task.encode(rows.take([(step * 8 + i) % len(rows) for i in range(8)]))
        task.loss(network, batch).backward()
        optimizer.step()
    return Victim(task, rows, state(network))


def lines(batch: Batch) -> list[list[int]]:
    assert batch.mask is not None
    pairs = zip(batch.inputs, batch.mask, strict=True)
    return [line[mask.bool()].tolist() for line, mask in pairs]


def tokens(batch: Batch) -> set[int]:
    return {token for line in lines(batch) for token in line}


def overlap(guess: Reconstruction, truth: list[list[int]]) -> float:
    """Share of the private tokens that are in the guess, start and end left out."""
    found = Counter(token for line in lines(guess.guess) for token in line[1:-1])
    real = Counter(token for line in truth for token in line[1:-1])
    return (found & real).total() / max(1, real.total())


def hub(model: str, data: str, split: str = "train[:600]", **options: Any) -> Victim:
    if "FEDSIM_HUB" not in os.environ:
        pytest.skip(f"FEDSIM_HUB is not set: no {model} here")
    rows = load_rows(data, split, modality="text")
    config = TaskConfig(model=model, dataset=data, **options)
    task = make_task(config, rows)
    return Victim(task, rows, initial_weights(task, config, 0))
