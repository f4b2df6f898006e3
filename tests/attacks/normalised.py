"""A tiny network whose normalisation layers keep running statistics, and its clients."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import nn

from clients.train import LocalTrainer
from fedsim.config.federation import FederationConfig
from fedsim.defenses import build_chain
from fedsim.knowledge import Knowledge
from fedsim.store.capture import CaptureKey, Kind, Observation
from fedsim.tasks.base import Task, TaskSpec, state
from fedsim.tasks.images import ImageClassification
from fedsim.types import Batch, Tensors


class Normalised(nn.Sequential):
    """Convolutions with each kind of layer that keeps running statistics, for four classes."""

    def __init__(self, momentum: float | None = 0.1) -> None:
        super().__init__(
            nn.Conv2d(3, 8, 3, padding=1),
            nn.BatchNorm2d(8, momentum=momentum),
            nn.ReLU(),
            nn.Conv2d(8, 12, 3, stride=2, padding=1),
            nn.InstanceNorm2d(12, momentum=0.3, track_running_stats=True),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(2),
            nn.Flatten(),
            nn.Linear(48, 4),
        )


class NormalisedTask(ImageClassification):
    """Four classes by that network; the momentum is an option of the architecture."""

    def build(self) -> nn.Module:
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(1)
            return Normalised(self.spec.architecture["momentum"]).eval()


def normalised(momentum: float | None = 0.1, size: int = 16) -> tuple[Task, Tensors]:
    """The task, and weights whose running statistics are not those of a new network."""
    spec = TaskSpec(
        kind="image-classification",
        model="resnet20",
        architecture={"momentum": momentum},
        num_classes=4,
        input_shape=(3, size, size),
    )
    task = NormalisedTask(spec)
    network = task.build().train()
    rows = torch.rand(3, 4, 3, size, size, generator=torch.Generator().manual_seed(2))
    for batch in rows:
        network(batch)
    return task, state(network)


def train_client(
    task: Task,
    sent: Tensors,
    batch: Batch,
    plan: Sequence[Sequence[int]] | None = None,
    *tables: dict[str, object],
    **federation: object,
) -> Observation:
    """What the server sees of a client in train mode that takes these steps on the batch."""
    plan = plan or [range(len(batch))]
    facts = {"batch_size": len(plan[0]), "train_mode": True, "learning_rate": 1e-9, **federation}
    config = FederationConfig.model_validate(facts)
    trainer = LocalTrainer(task, config, build_chain(tables, "defenses"), 0, torch.device("cpu"))
    done = trainer.defend(sent, batch, [tuple(step) for step in plan], 1, 0)
    knowledge = Knowledge(
        num_examples=len(batch),
        batch_size=len(plan[0]),
        local_steps=len(plan),
        learning_rate=config.learning_rate,
        optimizer="sgd",
        train_mode=config.train_mode,
        defense=tables,
        auxiliary=True,
    )
    kind: Kind = "gradient" if config.protocol == "fedsgd" else "weights"
    return Observation(CaptureKey(round=1, client=0), sent, done.tensors, kind, knowledge)


def summed(seen: Sequence[Observation]) -> Observation:
    """The mean of equally large clients' replies, as after secure aggregation."""
    replies = [observation.received for observation in seen]
    means = {
        name: torch.stack([reply[name].double() for reply in replies]).mean(0).to(value)
        for name, value in replies[0].items()
    }
    knowledge = Knowledge.pooled([observation.knowledge for observation in seen])
    return replace(seen[0], received=means, knowledge=knowledge)
