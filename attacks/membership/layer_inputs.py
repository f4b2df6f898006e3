"""Inputs of a network's first linear layers, measured against the span of their gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from typing import Any

import torch
from torch import Tensor, nn

from attacks.spans.subspace import Subspace, span
from fedsim.capture import Observation
from fedsim.errors import CannotAttack
from fedsim.models.linear import is_transposed
from fedsim.tasks.base import Task
from fedsim.types import Batch

_LAYERS = 5
"""Linear layers that are measured, the first ones: in a block of BERT all but the last."""
_ROWS = 32  # candidates in one pass


class _Reached(Exception):
    """Ends a forward pass once the last layer has its input."""


def residuals(
    network: nn.Module, task: Task, observations: Sequence[Observation], rows: Batch
) -> list[Tensor]:
    """For each update, minus the mean sine between a row's inputs and the spans of the layers.

    Returns:
        ``(row,)`` for each observation, all of the same weights.

    Raises:
        CannotAttack: the updates hold no weight of a linear layer.
    """
    layers = {
        name: module
        for name, module in network.named_modules()
        if (isinstance(module, nn.Linear) or is_transposed(module))
        and f"{name}.weight" in observations[0].received
    }
    chosen = dict(list(layers.items())[:_LAYERS])
    if not chosen:
        raise CannotAttack("no linear layer was sent", "Choose another statistic.")
    spans = [_spans(seen, chosen) for seen in observations]
    found: list[list[Tensor]] = [[] for _ in observations]
    for start in range(0, len(rows), _ROWS):
        some = rows[start : start + _ROWS]
        inputs = _inputs(network, task, chosen, some)
        for own, parts in zip(spans, found, strict=True):
            sines = [_mean(own[name].distance(value), some) for name, value in inputs.items()]
            parts.append(-torch.stack(sines).mean(0))
    return [torch.cat(parts) for parts in found]


def _spans(seen: Observation, layers: dict[str, nn.Module]) -> dict[str, Subspace]:
    update = seen.update({f"{name}.weight" for name in layers})
    weights = {name: update[f"{name}.weight"] for name in layers}
    return {
        name: span(weight if is_transposed(layers[name]) else weight.T)
        for name, weight in weights.items()
    }


def _inputs(
    network: nn.Module, task: Task, layers: dict[str, nn.Module], rows: Batch
) -> dict[str, Tensor]:
    """Inputs of the layers; of those that share one, such as query, key and value, the first."""
    found: dict[str, Tensor] = {}

    def keep(name: str) -> Callable[[nn.Module, tuple[Any, ...]], None]:
        def hook(module: nn.Module, args: tuple[Any, ...]) -> None:
            found[name] = args[0]
            if len(found) == len(layers):
                raise _Reached

        return hook

    with ExitStack() as stack, torch.no_grad(), suppress(_Reached):
        for name, module in layers.items():
            stack.callback(module.register_forward_pre_hook(keep(name)).remove)
        task.loss(network, rows)
    return {next(n for n, v in found.items() if v is value): value for value in found.values()}


def _mean(sines: Tensor, rows: Batch) -> Tensor:
    """Over the real tokens of each row, if a layer has an input for each."""
    if sines.dim() == 1 or rows.mask is None:
        return sines.flatten(1).mean(1) if sines.dim() > 1 else sines
    mask = rows.mask.to(sines)
    return (sines * mask).sum(1) / mask.sum(1)
