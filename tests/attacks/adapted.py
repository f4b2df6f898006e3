"""Clients of models with LoRA adapters."""

from collections import Counter
from typing import Any

import torch

from attacks.base import Job, Reconstruction
from attacks.span.span import Span
from fedsim.config.cell import TaskConfig
from fedsim.data.rows import load_rows
from fedsim.store.capture import Observation
from fedsim.tasks import initial_weights, make_task
from fedsim.types import Batch
from tests.attacks.victims import Victim, lines, taught


def adapted(model: str, rank: int, steps: int, **options: Any) -> Victim:
    """Adapters of this rank after some steps on eight sentences each; ``B`` is 0 after none."""
    rows = load_rows("sentences", "train", modality="text")
    config = TaskConfig(model=model, dataset="sentences", lora_rank=rank, **options)
    task = make_task(config, rows)
    network = task.model(initial_weights(task, config, 0))
    return taught(task, rows, network, steps, lr=0.005)


def run(victim: Victim, seen: Observation, attack: Any = None) -> Reconstruction:
    rng = torch.Generator().manual_seed(0)
    (guess,) = (attack or Span()).reconstruct([seen], victim.task, [rng], Job())
    return guess


def sentences(batch: Batch) -> Counter[tuple[int, ...]]:
    return Counter(map(tuple, lines(batch)))


def dictionary(rows: int, width: int) -> torch.Tensor:
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(0))
