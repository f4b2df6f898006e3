"""Clients and auxiliary rows for inverters that are learned."""

import torch
from torch import Tensor

from attacks.base import Job
from attacks.learned.features import Coordinates, Hashed
from attacks.learned.simulated_client import SimulatedClient, declared_client
from attacks.observed.replay import replay
from clients.train import LocalTrainer
from fedsim.config.federation import FederationConfig
from fedsim.defenses import build_chain
from fedsim.knowledge import Knowledge
from fedsim.store.capture import CaptureKey, Kind, Observation
from fedsim.tasks.base import Task
from fedsim.types import Batch, Tensors

CPU = torch.device("cpu")


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def owning(rows: Batch, **more: object) -> Job:
    return Job(auxiliary=lambda: rows, **more)  # type: ignore[arg-type]


def client(
    task: Task, sent: Tensors, batch: Batch, *tables: dict[str, object], **federation: object
) -> Observation:
    """What the server sees of a client that sends one update of the batch."""
    config = FederationConfig.model_validate({"batch_size": len(batch), **federation})
    trainer = LocalTrainer(task, config, build_chain(tables, "defenses"), 0, CPU)
    plan = [tuple(range(len(batch)))]
    tensors = trainer.defend(sent, batch, plan, 1, 0).tensors
    knowledge = Knowledge(
        num_examples=len(batch),
        batch_size=len(batch),
        local_steps=1,
        learning_rate=config.learning_rate,
        optimizer=config.optimizer,
        train_mode=False,
        defense=tables or ({"name": "none"},),
        auxiliary=True,
    )
    kind: Kind = "gradient" if config.protocol == "fedsgd" else "weights"
    return Observation(CaptureKey(round=1, client=0), sent, tensors, kind, knowledge)


def described(
    task: Task, seen: Observation, size: int, index: Tensor | None = None, *, defended: bool = True
) -> SimulatedClient:
    model = replay(seen, task, CPU)
    features = Hashed.of(Coordinates.of(model), index)
    return declared_client(seen, model, features, size, defended=defended)


SIGN: dict[str, object] = {"name": "sign"}
