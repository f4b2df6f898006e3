"""Sums over the coordinates of ``left^T right`` that do not follow from the factors."""

from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import Tensor

Slope: TypeAlias = Callable[[], Tensor]
Rule: TypeAlias = Callable[[Tensor, Tensor], tuple[Tensor, Slope]]
"""Maps a gradient, which may be overwritten, and the observed one to the sum of a function over the
last two axes, and to a callable that returns the derivative for each coordinate."""


_CACHED = 2**18
"""Coordinates formed at a time on a CPU; as many as fit into the cache of a core."""


class _CoordinateSum(torch.autograd.Function):
    """Computes the derivatives in the forward pass, so that no weight-sized tensor is kept."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401
        left: Tensor,
        right: Tensor,
        observed: Tensor,
        rule: Rule,
    ) -> Tensor:
        size = left.shape[-1] * right.shape[-1]
        step = max(1, _CACHED // size) if left.device.type == "cpu" else len(left[0])
        values, slopes = [], []
        for victim in range(len(left)):
            parts = zip(left[victim].split(step), right[victim].split(step), strict=True)
            for own_left, own_right in parts:
                value, slope = rule(own_left.mT @ own_right, observed[victim])
                values.append(value)
                if any(ctx.needs_input_grad):
                    formed = slope()
                    slopes.append((own_right @ formed.mT, own_left @ formed))
        if slopes:
            sides = (torch.cat(side) for side in zip(*slopes, strict=True))
            ctx.save_for_backward(*(side.unflatten(0, left.shape[:2]) for side in sides))
        total: Tensor = torch.cat(values).unflatten(0, left.shape[:2])
        return total

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor, Tensor, None, None]:  # noqa: ANN401
        left, right = ctx.saved_tensors
        scale = upstream[0][..., None, None]
        return scale * left, scale * right, None, None


def coordinate_sum(left: Tensor, right: Tensor, observed: Tensor, rule: Rule) -> Tensor:
    """``sum over a, b of rule(left^T right)``, ``(victim, candidate)``; differentiable once.

    Args:
        left: ``(victim, candidate, row, a)``.
        right: ``(victim, candidate, row, b)``.
        observed: ``(victim, a, b)``.
        rule: the function of each coordinate, with its derivative.
    """
    apply: Callable[..., Tensor] = _CoordinateSum.apply
    return apply(left, right, observed, rule)


def difference(alpha_l1: float, *, within: bool) -> Rule:
    """``d^2 + alpha_l1 |d|`` for ``d = G - observed``; if ``within``, only where observed != 0."""

    def rule(gradient: Tensor, observed: Tensor) -> tuple[Tensor, Slope]:
        gap = gradient.sub_(observed)
        if within:
            gap.mul_(observed != 0)
        value = _energy(gap) + alpha_l1 * torch.linalg.vector_norm(gap, ord=1, dim=(-2, -1))
        return value, lambda: gap.sign().mul_(alpha_l1).add_(gap, alpha=2)

    return rule


def square_within(gradient: Tensor, observed: Tensor) -> tuple[Tensor, Slope]:
    """``G^2`` where the observed coordinate is nonzero, else 0."""
    within = gradient.mul_(observed != 0)
    return _energy(within), lambda: within.mul_(2)


def soft_sign(gradient: Tensor, observed: Tensor) -> tuple[Tensor, Slope]:
    """``tanh(G) sign(observed)``."""
    soft, signs = gradient.tanh_(), observed.sign()
    return (soft * signs).sum((-2, -1)), lambda: (1 - soft.square()).mul_(signs)


def soft_square(gradient: Tensor, observed: Tensor) -> tuple[Tensor, Slope]:
    """``tanh(G)^2``."""
    del observed
    soft = gradient.tanh_()
    return _energy(soft), lambda: 2 * soft * (1 - soft.square())


def _energy(values: Tensor) -> Tensor:
    norm: Tensor = torch.linalg.vector_norm(values, dim=(-2, -1))
    return norm.square()
