"""The optimiser of a client's local steps."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn


def local_optimizer(
    name: str,
    parameters: Iterable[nn.Parameter],
    learning_rate: float,
    *,
    momentum: float,
    weight_decay: float,
) -> torch.optim.Optimizer:
    """The optimiser of a name of ``[federation]``, with torch's defaults for all else."""
    if name == "adam":
        return torch.optim.Adam(parameters, lr=learning_rate, weight_decay=weight_decay)
    if name == "adamw":
        return torch.optim.AdamW(parameters, lr=learning_rate, weight_decay=weight_decay)
    if name == "adafactor":
        return torch.optim.Adafactor(parameters, lr=learning_rate, weight_decay=weight_decay)
    inertia = momentum if name == "momentum" else 0.0
    return torch.optim.SGD(
        parameters, lr=learning_rate, momentum=inertia, weight_decay=weight_decay
    )
