"""Updates, batches and tasks for defenses."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedsim.config.cell import TaskConfig
from fedsim.data.rows import load_rows
from fedsim.store.capture import Observation
from fedsim.tasks import initial_weights, make_task
from fedsim.tasks.base import Task
from fedsim.types import Batch, Tensors

Victim = Callable[..., tuple[Task, Observation]]
Pictures = Callable[..., Batch]
CPU = torch.device("cpu")
NETWORK = nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 10))


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def smooth(count: int) -> Batch:
    """Pictures whose pixels are bytes."""
    pixels = F.avg_pool2d(torch.rand(count, 3, 32, 32, generator=rng()), 3, 1, 1)
    return Batch((pixels * 255).round() / 255, torch.arange(count))


def update() -> Tensors:
    return {
        "a": torch.tensor([[4.0, -1.0], [0.0, 2.0]]),
        "steps": torch.tensor(7),
        "b": torch.tensor([-30.0, 10.0, 20.0, 0.5]),
    }


def filtered(update: Tensors) -> Tensor:
    """The coordinates that NVFlare's filters change, ``(coordinate,)``."""
    return torch.cat([update["weight"].flatten(), update["bias"]])


def text_task(model: str) -> tuple[Task, Tensors, Batch]:
    config = TaskConfig(model=model, dataset="sentences", max_length=16)
    rows = load_rows("sentences", "train[:3]", modality="text")
    task = make_task(config, rows)
    return task, initial_weights(task, config, 0), task.encode(rows)
