"""Distances between the gradient of a guess and the observed one."""

from collections.abc import Mapping

import torch
from torch import Tensor

from fedsim.types import Tensors

EPSILON = 1e-12
"""Smallest norm of a gradient: keeps the cosine of a vanishing gradient, and its slope, finite."""


def _weight(weights: Mapping[str, Tensor] | None, name: str) -> Tensor | float:
    return 1.0 if weights is None else weights.get(name, 1.0)


def squared_error(
    guess: Tensors, observed: Tensors, weights: Mapping[str, Tensor] | None = None
) -> Tensor:
    """Sum over tensors of the squared L2 distance (DLG, 2019), over the observed names only.

    Args:
        guess: gradients of at least the observed names; a surrogate may add or keep more.
        observed: the received gradient; frozen parameters are absent.
        weights: a factor per name, 1 where absent; a 0/1 tensor restricts to some coordinates.
    """
    parts = [
        (_weight(weights, name) * (guess[name] - value).square()).sum()
        for name, value in observed.items()
    ]
    return torch.stack(parts).sum()


def cosine_distance(
    guess: Tensors, observed: Tensors, weights: Mapping[str, Tensor] | None = None
) -> Tensor:
    """``1 - cosine`` with one inner product over all observed names (Inverting Gradients, 2020).

    In [0, 2]; 1 where either gradient vanishes. Arguments as in ``squared_error``.
    """
    guessed = torch.cat([guess[name].flatten() for name in observed])
    goal = torch.cat([value.flatten() for value in observed.values()])
    if weights is not None:
        spread = [torch.ones_like(value) * _weight(weights, n) for n, value in observed.items()]
        roots = torch.cat([part.flatten() for part in spread]).sqrt()
        guessed, goal = roots * guessed, roots * goal
    # The square root's slope is infinite at 0, hence the epsilon inside and not a clamp outside.
    squares = [vector.square().sum() + EPSILON**2 for vector in (guessed, goal)]
    # 1 - u v = |u - v|^2 / 2 of unit vectors keeps all digits where the two are close. Scaling one
    # to the length of the other spares a quarter of the search that dividing both would take.
    apart = (guessed - (squares[0] / squares[1]).sqrt() * goal).square().sum()
    missing = (1 + squares[0] / squares[1]) * EPSILON**2
    return (apart + missing) / (2 * squares[0])
