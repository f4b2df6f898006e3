"""Batches and optimiser of a client's local steps."""

from __future__ import annotations

import torch
from torch import nn

from fedsim.federation import FederationConfig
from fedsim.seeds import generator


def schedule(
    config: FederationConfig, seed: int, count: int, round_: int, client: int
) -> list[list[int]]:
    """Positions among a client's ``count`` rows that each local step uses.

    FedSGD takes one random batch. FedAvg takes ``client_rows`` random rows in batches and shuffles
    them again for every further epoch; the last batch of an epoch may be smaller.
    """
    rng = generator(seed, "batches", round_, client)
    size = config.batch_size
    order = torch.randperm(count, generator=rng).tolist()
    if config.protocol == "fedsgd":
        return [order[:size]]
    order = order[: config.client_rows or count]
    epoch_steps = -(-len(order) // size)
    steps = []
    for step in range(config.local_steps or config.local_epochs * epoch_steps):
        start = step % epoch_steps
        if start == 0 and step > 0:
            shuffled = torch.randperm(len(order), generator=rng).tolist()
            order = [order[i] for i in shuffled]
        steps.append(order[start * size : (start + 1) * size])
    return steps


def make_optimizer(
    config: FederationConfig, parameters: list[nn.Parameter]
) -> torch.optim.Optimizer:
    """The optimiser of FedAvg clients."""
    lr, decay = config.learning_rate, config.weight_decay
    if config.optimizer == "adam":
        return torch.optim.Adam(parameters, lr=lr, weight_decay=decay)
    if config.optimizer == "adamw":
        return torch.optim.AdamW(parameters, lr=lr, weight_decay=decay)
    momentum = config.momentum if config.optimizer == "momentum" else 0.0
    return torch.optim.SGD(parameters, lr=lr, momentum=momentum, weight_decay=decay)
