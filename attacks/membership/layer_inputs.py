"""Inputs of a network's first linear layers, measured against the span of their gradients."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn

from attacks.spans.subspace import span
from fedsim.errors import CannotAttack
from fedsim.models.linear import is_transposed
from fedsim.tasks.base import Task
from fedsim.types import Batch, Tensors

_LAYERS = 6
"""Linear layers that are measured, the first ones: a block of BERT has as many."""
_ROWS = 32


def residuals(network: nn.Module, task: Task, update: Tensors, rows: Batch) -> Tensor:
    """Minus the mean sine between a row's inputs and the spans of the layers ``(row,)``.

    Raises:
        CannotAttack: the update holds no weight of a linear layer.
    """
    layers = {
        name: module
        for name, module in network.named_modules()
        if (isinstance(module, nn.Linear) or is_transposed(module)) and f"{name}.weight" in update
    }
    names = list(layers)[:_LAYERS]
    if not names:
        raise CannotAttack("no linear layer was sent", "Choose another statistic.")
    spans = {}
    for name in names:
        gradient = update[f"{name}.weight"]
        spans[name] = span(gradient if is_transposed(layers[name]) else gradient.T)
    parts = []
    for start in range(0, len(rows), _ROWS):
        some = rows[start : start + _ROWS]
        inputs = _inputs(network, task, {name: layers[name] for name in names}, some)
        sines = [
            _mean(spans[name].distance(value.double()), some) for name, value in inputs.items()
        ]
        parts.append(-torch.stack(sines).mean(0))
    return torch.cat(parts)


def _inputs(
    network: nn.Module, task: Task, layers: dict[str, nn.Module], rows: Batch
) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}

    def keep(name: str) -> Callable[[nn.Module, tuple[Any, ...]], None]:
        def hook(module: nn.Module, args: tuple[Any, ...]) -> None:
            found[name] = args[0]

        return hook

    with ExitStack() as stack, torch.no_grad():
        for name, module in layers.items():
            stack.callback(module.register_forward_pre_hook(keep(name)).remove)
        task.loss(network, rows)
    return found


def _mean(sines: Tensor, rows: Batch) -> Tensor:
    """Over the real tokens of each row."""
    if sines.dim() == 1 or rows.mask is None:
        return sines.flatten(1).mean(1) if sines.dim() > 1 else sines
    mask = rows.mask.to(sines)
    return (sines * mask).sum(1) / mask.sum(1)
