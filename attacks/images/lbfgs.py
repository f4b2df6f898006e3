"""L-BFGS that waits for the device once a step."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

_CURVED = 1e-10  # of a pair of changes that the history keeps


class LBFGS:
    """L-BFGS without line search (Nocedal 1980), step for step that of ``torch.optim``.

    That one reads five numbers in each iteration, and two more for each pair of its history; on a
    GPU the CPU waits for each. This one reads once a step. Until then a pair that does not belong
    into the history counts as nothing, and where a direction leads uphill the point stays.

    Args:
        variables: moved in place.
        objective: its value and its slopes in the variables, at where they are.
        iterations: in each step.
        history: pairs of changes kept.
    """

    def __init__(
        self,
        variables: Sequence[Tensor],
        objective: Callable[[], tuple[Tensor, Sequence[Tensor]]],
        iterations: int,
        history: int,
    ) -> None:
        self._variables, self._objective = variables, objective
        self._iterations, self._history = iterations, history
        self._pairs: list[tuple[Tensor, Tensor]] = []
        self._inverses = variables[0].new_zeros(0)  # of their products; 0 for a pair not kept
        self._before: tuple[Tensor, Tensor] | None = None
        self._scale: Tensor | float = 1.0
        self._stuck = False

    def step(self) -> Tensor:
        """All iterations of a step; the objective before them."""
        first, slope = self._evaluated()
        if self._stuck:
            return first
        for iteration in range(self._iterations):
            if iteration:
                _, slope = self._evaluated()
            change, uphill = self._change(slope)
            self._before = slope, change
            self._move(change)
        flags = torch.cat([self._inverses != 0, uphill[None]])
        *moving, self._stuck = flags.tolist()
        if not all(moving):
            places = [place for place, moves in enumerate(moving) if moves]
            self._pairs = [self._pairs[place] for place in places]
            self._inverses = self._inverses[places]
        return first

    def _evaluated(self) -> tuple[Tensor, Tensor]:
        value, slopes = self._objective()
        return value, torch.cat([slope.flatten() for slope in slopes])

    def _change(self, slope: Tensor) -> tuple[Tensor, Tensor]:
        """What to add to the variables, and whether it would lead uphill."""
        if self._before is None:
            direction = -slope * (1 / slope.abs().sum()).clamp(max=1)
        else:
            self._remember(slope, *self._before)
            direction = self._direction(slope)
        uphill = slope.dot(direction) > 0
        return torch.where(uphill, 0, direction), uphill

    def _direction(self, slope: Tensor) -> Tensor:
        """The inverse Hessian that the history tells of, times the slope, by two loops."""
        direction, shares = -slope, deque[Tensor]()
        inverses = self._inverses.unbind()
        for (turned, moved), inverse in zip(reversed(self._pairs), reversed(inverses), strict=True):
            shares.appendleft(moved.dot(direction) * inverse)
            direction.addcmul_(turned, shares[0], value=-1)
        direction *= self._scale
        for (turned, moved), inverse, share in zip(self._pairs, inverses, shares, strict=True):
            direction.addcmul_(moved, share - turned.dot(direction) * inverse)
        return direction

    def _remember(self, slope: Tensor, before: Tensor, moved: Tensor) -> None:
        turned = slope - before
        along = turned.dot(moved)
        curved = along > _CURVED
        self._pairs.append((turned, moved))
        inverses = torch.cat([self._inverses, torch.where(curved, 1 / along, 0)[None]])
        newer = (inverses != 0).flip(0).cumsum(0).flip(0)
        self._inverses = torch.where(newer <= self._history, inverses, 0)
        self._scale = torch.where(curved, along / turned.dot(turned), self._scale)

    def _move(self, change: Tensor) -> None:
        sizes = [variable.numel() for variable in self._variables]
        for variable, part in zip(self._variables, change.split(sizes), strict=True):
            variable.data.add_(part.view_as(variable))
