"""Replies of clients of the testbed, undefended or with a defense of it."""

from functools import cache
from typing import Any

import torch

from clients.train import LocalTrainer
from experiments.captures.reading import Reading
from experiments.captures.update import Update, without_decayed
from fedsim.config.cell import TaskConfig
from fedsim.config.federation import FederationConfig
from fedsim.data.rows import load_rows
from fedsim.defenses import build_chain
from fedsim.knowledge import Knowledge
from fedsim.store.capture import CaptureKey, Observation
from fedsim.tasks import initial_weights, make_task
from fedsim.tasks.base import Task
from fedsim.types import Rows, Tensors


@cache
def victim(model: str) -> tuple[Task, Rows, Tensors]:
    """A task with random weights and its rows."""
    text = model not in ("lenet", "resnet20", "mlp", "vit")
    name = "sentences" if text else "shapes"
    rows = load_rows(name, "train", modality="text" if text else "image")
    config = TaskConfig(model=model, dataset=name)
    task = make_task(config, rows)
    return task, rows, initial_weights(task, config, 0)


def reply(
    model: str,
    client: int,
    *tables: dict[str, Any],
    steps: int = 0,
    optimizer: str = "sgd",
    round_: int = 1,
    count: int = 2,
) -> Update:
    """What one client sends: a gradient of a batch, or weights after some local steps."""
    task, rows, sent = victim(model)
    options: dict[str, Any] = {"batch_size": count, "optimizer": optimizer}
    if steps:
        # Steps of SGD of .01 drive some clients of ResNet-20 to NaN.
        rate = 0.01 if optimizer == "sgd" and model != "resnet20" else 1e-3
        options |= {"protocol": "fedavg", "local_steps": steps, "learning_rate": rate}
    config = FederationConfig(**options)
    chain = build_chain(tables, "defenses")
    trainer = LocalTrainer(task, config, chain, 0, torch.device("cpu"))
    rng = torch.Generator().manual_seed(client)
    used = count * max(steps, 1)
    chosen = rows.take(torch.randperm(len(rows), generator=rng)[:used].tolist())
    made = trainer.run(sent, chosen, round_, client)
    known = Knowledge(
        num_examples=used,
        batch_size=count,
        local_steps=max(steps, 1),
        optimizer=optimizer,
        learning_rate=config.learning_rate,
    )
    key = CaptureKey(round=round_, client=client)
    seen = Reading(Observation(key, sent, made.tensors, made.kind, known))
    return Update(without_decayed(seen, task), task)
