"""The observed gradients of several victims, laid out as the factored gradient of a guess."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from attacks.texts.low_rank import factor
from fedsim.types import Tensors

Thin = tuple[Tensor, Tensor]


@dataclass(frozen=True, slots=True)
class GradientTarget:
    """Observed gradient of one group of layers.

    Attributes:
        full: ``(layer, victim, a, b)`` of weights, ``(layer, victim, coordinate)`` of vectors and
            tables; None where factors stand for it.
        factors: ``left (layer, victim, a, rank)`` and ``right (layer, victim, b, rank)``.
        norm: ``(layer, victim)``; 1 where the gradient is zero.
        alive: whether there is a gradient to compare, ``(layer, victim)``.
    """

    full: Tensor | None
    factors: Thin | None
    norm: Tensor
    alive: Tensor

    def only(self, victims: slice) -> GradientTarget:
        """The targets of a subset of the victims."""
        factors = self.factors
        return GradientTarget(
            None if self.full is None else self.full[:, victims],
            None if factors is None else (factors[0][:, victims], factors[1][:, victims]),
            self.norm[:, victims],
            self.alive[:, victims],
        )


def make_targets(
    groups: Iterable[tuple[str, ...]],
    weights: frozenset[str],
    living: frozenset[str],
    observed: Iterable[Tensors],
    rank: int,
    like: Tensor,
) -> dict[tuple[str, ...], GradientTarget]:
    """One target for each group of parameter names.

    Args:
        groups: names of layers of the same shape.
        weights: names that are matrices ``left^T right``; any other gradient is flattened.
        living: names whose gradient is not analytically zero.
        observed: gradients of the victims in order, float64.
        rank: a group whose weights all have a lower rank is kept as factors.
        like: a tensor of the dtype and device to use.
    """
    seen: dict[str, list[_Seen]] = {name: [] for group in groups for name in group}
    for victim in observed:
        for name, layer in seen.items():
            value = victim[name].to(like.device)
            thin = factor(value, rank) if name in weights else None
            whole = None if thin else (value if name in weights else value.flatten()).to(like)
            layer.append(_Seen(whole, thin and (thin[0].to(like), thin[1].to(like)), value.norm()))
    return {
        group: _target([seen[name] for name in group], [name in living for name in group])
        for group in groups
    }


@dataclass(frozen=True, slots=True)
class _Seen:
    full: Tensor | None
    thin: Thin | None
    norm: Tensor

    def whole(self) -> Tensor:
        if self.full is not None:
            return self.full
        assert self.thin is not None
        return self.thin[0] @ self.thin[1].T


def _target(layers: Sequence[Sequence[_Seen]], living: Sequence[bool]) -> GradientTarget:
    norm = torch.stack([torch.stack([victim.norm for victim in victims]) for victims in layers])
    alive = (norm > 0) & torch.tensor(living, device=norm.device)[:, None]
    # Never 0, as it is divided by: what is not alive is computed, too, and then left out.
    norm = norm.where(norm > 0, 1)
    thin = [[victim.thin for victim in victims if victim.thin is not None] for victims in layers]
    if all(len(factored) == len(victims) for factored, victims in zip(thin, layers, strict=True)):
        left, right = (
            torch.stack([torch.stack([pair[side] for pair in factored]) for factored in thin])
            for side in (0, 1)
        )
        return GradientTarget(None, (left, right), norm.to(left), alive)
    full = torch.stack([torch.stack([victim.whole() for victim in victims]) for victims in layers])
    return GradientTarget(full, None, norm.to(full), alive)
