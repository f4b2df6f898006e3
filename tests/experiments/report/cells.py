"""Cells of a page."""

from typing import Any

from fedsim.config.cell import AuxiliaryConfig, CaptureConfig, CellConfig, ServerKnows, TaskConfig
from fedsim.config.federation import FederationConfig

DEFENSES: list[tuple[str, dict[str, Any]]] = [
    ("none", {}),
    ("freeze_embeddings", {"head": False, "position": True, "word": True}),
    ("gaussian_noise", {"stage": "client", "std": 0.01}),
]


ROUNDS, CLIENTS = 3, 3


def cell_of(task: str, defense: tuple[str, dict[str, Any]]) -> CellConfig:
    image = task.startswith("image")
    return CellConfig(
        seed=0,
        task=TaskConfig(
            model="lenet" if image else "bert-base-uncased",
            dataset="uoft-cs/cifar10" if image else "nyu-mll/glue:cola",
            split="train[:900]",
        ),
        auxiliary=AuxiliaryConfig(dataset="Salesforce/wikitext", split="train", rows=1000),
        federation=FederationConfig(
            clients=CLIENTS,
            rounds=ROUNDS,
            batch_size=2,
            protocol="fedsgd" if image else "fedavg",
            learning_rate=0.01,
        ),
        capture=CaptureConfig(),
        server_knows=ServerKnows(labels=True),
        defense=() if defense[0] == "none" else ({"name": defense[0], **defense[1]},),
    )
