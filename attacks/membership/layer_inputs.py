"""Inputs of a network's first linear layers, measured against the gradients of these layers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from attacks.observed.spectrum import Spectrum, spectrum
from fedsim.capture import Observation
from fedsim.errors import CannotAttack
from fedsim.models.linear import is_transposed
from fedsim.tasks.base import Task
from fedsim.types import Batch

_LAYERS = 5
"""Linear layers that are measured, the first ones: in a block of BERT all but the last."""
_ROWS = 32  # candidates in one pass
_ROUNDING = 1e-12
"""Energy that float32 leaves in each other direction, as a share of the strongest one's."""
Layers: TypeAlias = dict[str, nn.Module]


class _Reached(Exception):
    """Ends a forward pass once the last layer has its input."""


@dataclass(frozen=True)
class _Span:
    """The directions of a gradient ``G``, ``(width, outputs)``, and the noise around them.

    An input of the batch is ``x = G w`` for a small ``w``. The score is minus the logarithm of
    ``|w|^2 / |x|^2``, where noise allows for a rest outside the span:
    ``x^T (G G^T + m sigma^2)^-1 x / |x|^2``. It stays of use where the tokens fill the space.
    """

    seen: Spectrum
    floor: float

    @classmethod
    def of(cls, gradient: Tensor, most: int) -> _Span:
        seen = spectrum(gradient, most)
        strongest = float(seen.strengths.max()) if seen.rank else 1.0
        noise = gradient.shape[1] * seen.noise**2
        return cls(seen, max(noise, _ROUNDING * strongest, 1e-300))

    def score(self, inputs: Tensor) -> Tensor:
        """Of each of the inputs ``(..., width)``, the higher the nearer."""
        inputs = inputs.double()
        inside = (inputs @ self.seen.basis.to(inputs)).square()
        total = inputs.square().sum(-1).clamp(min=1e-300)
        rest = (total - inside.sum(-1)).clamp(min=0)
        weights = 1 / (self.seen.strengths.to(inputs) + self.floor)
        return -((inside @ weights + rest / self.floor) / total).clamp(min=1e-300).log()


def residuals(
    network: nn.Module, task: Task, observations: Sequence[Observation], rows: Batch
) -> list[Tensor]:
    """For each update the mean score of a row's inputs in the spans of the layers.

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
    groups = _sharing(_inputs(network, task, chosen, rows[:1]))
    tokens = rows.inputs.shape[1] if rows.mask is not None else 1
    spans = [_spans(seen, chosen, groups, tokens) for seen in observations]
    found: list[list[Tensor]] = [[] for _ in observations]
    for start in range(0, len(rows), _ROWS):
        some = rows[start : start + _ROWS]
        inputs = _inputs(network, task, chosen, some)
        for own, parts in zip(spans, found, strict=True):
            scores = [_mean(span.score(inputs[name]), some) for name, span in own.items()]
            parts.append(torch.stack(scores).mean(0))
    return [torch.cat(parts) for parts in found]


def _sharing(inputs: dict[str, Tensor]) -> list[list[str]]:
    """Layers with the same input, such as query, key and value; their gradients share a span."""
    groups: dict[int, list[str]] = {}
    for name, value in inputs.items():
        groups.setdefault(id(value), []).append(name)
    return list(groups.values())


def _spans(
    seen: Observation, layers: Layers, groups: Sequence[Sequence[str]], tokens: int
) -> dict[str, _Span]:
    update = seen.update({f"{name}.weight" for name in layers})
    gradients = {
        name: update[f"{name}.weight"] if is_transposed(layer) else update[f"{name}.weight"].T
        for name, layer in layers.items()
    }
    most = tokens * (seen.knowledge.num_examples or 1)
    return {
        group[0]: _Span.of(torch.cat([gradients[name] for name in group], 1), most)
        for group in groups
    }


def _inputs(network: nn.Module, task: Task, layers: Layers, rows: Batch) -> dict[str, Tensor]:
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
    return found


def _mean(scores: Tensor, rows: Batch) -> Tensor:
    """Over the real tokens of each row, if a layer has an input for each."""
    if scores.dim() == 1 or rows.mask is None:
        return scores.flatten(1).mean(1) if scores.dim() > 1 else scores
    mask = rows.mask.to(scores)
    return (scores * mask).sum(1) / mask.sum(1)
