"""Inputs of a network's first linear layers, measured against the gradients of these layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor, nn

from attacks.observed.calls import inputs_of
from attacks.tokens.subspace import Subspace, span
from fedsim.errors import CannotAttack
from fedsim.models.layers import is_transposed
from fedsim.store.capture import Observation
from fedsim.tasks.base import Task
from fedsim.types import Batch

_LAYERS = 5
"""Linear layers that are measured, the first ones: in a block of BERT all but the last."""
_ROWS = 32  # candidates in one pass
_ROUNDING = 1e-12
"""Energy that float32 leaves in each other direction, as a share of the strongest one's."""
Layers: TypeAlias = dict[str, nn.Module]


@dataclass(frozen=True)
class _Span:
    """The inputs ``x`` of a layer's gradient ``G``, ``(width, outputs)``, are ``G w``.

    Attributes:
        subspace: that ``G`` spans.
        directions: left singular vectors of ``G``, ``(width, rank)``.
        strengths: squared singular values.
    """

    subspace: Subspace
    directions: Tensor
    strengths: Tensor

    @classmethod
    def of(cls, gradient: Tensor) -> _Span:
        left, values, _ = torch.linalg.svd(gradient.double(), full_matrices=False)
        return cls(span(gradient), left, values.square())

    @property
    def tells(self) -> bool:
        """Whether the span leaves room, so that other inputs lie outside."""
        return self.subspace.rank < self.subspace.width

    def nearness(self, inputs: Tensor) -> Tensor:
        """Minus the sine of the angle to the span."""
        return -self.subspace.distance(inputs)

    def lightness(self, inputs: Tensor) -> Tensor:
        """Minus ``log(|w|^2 / |x|^2)``, of use where tokens or noise fill the space."""
        inputs = inputs.double()
        floor = max(_ROUNDING * float(self.strengths[0]), 1e-300)
        inside = (inputs @ self.directions.to(inputs)).square()
        total = inputs.square().sum(-1).clamp(min=1e-300)
        rest = (total - inside.sum(-1)).clamp(min=0) / floor
        weights = inside @ (1 / (self.strengths.to(inputs) + floor))
        return -((weights + rest) / total).clamp(min=1e-300).log()


def residuals(
    network: nn.Module, task: Task, observations: Sequence[Observation], rows: Batch
) -> list[Tensor]:
    """For each update how well a row's inputs fit the gradients of the layers, on average.

    The angles to the spans (ProjRes), where a span leaves room; else how little of the gradient the
    inputs take, standardised by layer, as some layers tell more.

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
    spans = [_spans(seen, chosen, groups) for seen in observations]
    parts_by_update: list[list[Tensor]] = [[] for _ in observations]
    for start in range(0, len(rows), _ROWS):
        some = rows[start : start + _ROWS]
        inputs = _inputs(network, task, chosen, some)
        for spans_of, parts in zip(spans, parts_by_update, strict=True):
            parts.append(torch.stack([_mean(s, some) for s in _scores(spans_of, inputs)]))
    return [
        (torch.cat(parts, 1) if _telling(spans_of) else _standard(torch.cat(parts, 1))).mean(0)
        for spans_of, parts in zip(spans, parts_by_update, strict=True)
    ]


def _telling(spans: dict[str, _Span]) -> dict[str, _Span]:
    return {name: layer_span for name, layer_span in spans.items() if layer_span.tells}


def _scores(spans: dict[str, _Span], inputs: dict[str, Tensor]) -> list[Tensor]:
    """Nearness in the layers that tell, or lightness in all if none does."""
    if telling := _telling(spans):
        return [layer_span.nearness(inputs[name]) for name, layer_span in telling.items()]
    return [layer_span.lightness(inputs[name]) for name, layer_span in spans.items()]


def _standard(scores: Tensor) -> Tensor:
    """``(layer, row)`` with mean 0 and deviation 1 in each layer, some of which tell more."""
    middle = scores.mean(1, keepdim=True)
    return (scores - middle) / scores.std(1, keepdim=True).clamp(min=1e-30)


def _sharing(inputs: dict[str, Tensor]) -> list[list[str]]:
    """Layers with the same input, such as query, key and value; their gradients share a span."""
    groups: dict[int, list[str]] = {}
    for name, value in inputs.items():
        groups.setdefault(id(value), []).append(name)
    return list(groups.values())


def _spans(seen: Observation, layers: Layers, groups: Sequence[Sequence[str]]) -> dict[str, _Span]:
    update = seen.update({f"{name}.weight" for name in layers})
    gradients = {
        name: update[f"{name}.weight"] if is_transposed(layer) else update[f"{name}.weight"].T
        for name, layer in layers.items()
    }
    return {
        group[0]: _Span.of(torch.cat([gradients[name] for name in group], 1)) for group in groups
    }


def _inputs(network: nn.Module, task: Task, layers: Layers, rows: Batch) -> dict[str, Tensor]:
    inputs = inputs_of([*layers.values()], lambda: task.loss(network, rows))
    return dict(zip(layers, inputs, strict=True))


def _mean(scores: Tensor, rows: Batch) -> Tensor:
    """Over the real tokens of each row, if a layer has an input for each."""
    if scores.dim() == 1 or rows.mask is None:
        return scores.flatten(1).mean(1) if scores.dim() > 1 else scores
    mask = rows.mask.to(scores)
    return (scores * mask).sum(1) / mask.sum(1)
