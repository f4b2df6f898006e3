"""Image updates under a defense, for several attacks."""

from collections.abc import Callable
from dataclasses import replace

import torch

from attacks.base import Reconstruction
from fedsim.defenses import build_chain
from fedsim.store.capture import Observation
from fedsim.tasks.base import Task
from fedsim.types import Batch

Victim = Callable[..., tuple[Task, Observation]]


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def error(found: Reconstruction, batch: Batch) -> float:
    """Mean squared error of the pixels."""
    return float((found.guess.inputs - batch.inputs).square().mean())


def defended(
    victim: Victim, batch: Batch, chain: tuple[dict[str, object], ...]
) -> tuple[Task, Observation]:
    """What the server sees of a LeNet that was trained on ten shades of grey."""
    task, seen = victim(batch, defense=chain)
    network = task.model(seen.sent)
    shades = torch.linspace(0, 1, 10).view(10, 1, 1, 1).expand(-1, *batch.inputs.shape[1:])
    optimizer = torch.optim.SGD(network.parameters(), lr=0.02)
    for _ in range(30):
        optimizer.zero_grad()
        task.loss(network, Batch(shades, torch.arange(10))).backward()
        optimizer.step()
    built, none = build_chain(chain, "defense"), rng()
    each = [built.on_gradient(task.gradient(network, batch[i]), none) for i in range(len(batch))]
    mean = {name: torch.stack([gradient[name] for gradient in each]).mean(0) for name in each[0]}
    sent = {name: value.detach() for name, value in network.state_dict().items()}
    return task, replace(seen, sent=sent, received=built.on_update(mean, none))
