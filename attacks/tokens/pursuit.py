"""Few rows of a dictionary whose span contains a space of fewer dimensions than rows."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from attacks.base import Job

_PURSUED = 3e-4
"""Share of a direction that a pursuit leaves to rounding."""
PURSUED_ROOM = 1e-3
"""Share of a row outside the chosen ones below which it says nothing new."""
_NOISY_ROOM = 1e-2
"""The same where noise blurs what the rows leave."""
_PURSUED_SPARE = 3
"""Dimensions that the rows of a pursuit leave, as rows that fill the width explain anything. At
width 256 all 222 to 252 words of sixteen mails are named; with .7 of the width none were."""


@dataclass(frozen=True)
class Pursuit:
    """What some rows leave of a space that a sum ``D X`` of unknown rows ``X`` was seen to span.

    With more rows than dimensions seen no row lies in the space, but if there are few of them in a
    wide space, no other rows of a dictionary explain it: ``k`` rows of ``d`` dimensions are unique
    for ``2 k < d + rank``, and others are unlikely as long as ``k < d``. Rank-aware order-recursive
    matching pursuit (Davies and Eldar 2012, "Rank Awareness in Joint Sparse Recovery") finds them
    one by one.

    Attributes:
        residual: what is left of each direction of the space, float64 ``(direction, width)``.
        rows: orthonormal basis of the rows, float64 ``(row, width)``.
    """

    residual: Tensor
    rows: Tensor

    @classmethod
    def of(cls, basis: Tensor) -> Pursuit:
        """Of orthonormal columns ``(width, direction)`` and no row."""
        return cls(basis.T, basis.T[:0])

    @property
    def done(self) -> bool:
        """Whether the rows explain the space up to rounding."""
        # The largest singular value is no less than their root mean square, and no SVD is needed.
        if self.residual.norm() > _PURSUED * max(1, len(self.residual)) ** 0.5:
            return False
        return not len(self.directions)

    @cached_property
    def directions(self) -> Tensor:
        """Orthonormal basis of what is left, ``(direction, width)``."""
        _, sizes, basis = torch.linalg.svd(self.residual, full_matrices=False)
        directions: Tensor = basis[sizes > _PURSUED]
        return directions

    def plus(self, inputs: Tensor) -> Pursuit:
        """The same with further rows ``(row, width)``; those in the span of others add nothing."""
        rows, residual = self.rows, self.residual
        for row in inputs.to(rows):
            new = row
            for _ in range(2):  # once more against rounding
                new = new - (new @ rows.T) @ rows
            if new.norm() > _PURSUED * row.norm():
                new = new / new.norm()
                rows, residual = (
                    torch.cat([rows, new[None]]),
                    residual - (residual @ new)[:, None] * new,
                )
        return replace(self, residual=residual, rows=rows)

    def shares(self, inputs: Tensor, directions: Tensor) -> Tensor:
        """Share of what rows leave of inputs ``(..., width)`` that lies in ``directions``."""
        rows = inputs.to(self.rows)
        rest = rows - (rows @ self.rows.T) @ self.rows
        size = rest.square().sum(-1)
        share = (rest @ directions.T).square().sum(-1) / size.clamp(min=1e-30)
        return share.where(size > _PURSUED * rows.square().sum(-1), 0)


def few_rows(
    basis: Tensor, atoms: Tensor, job: Job, kinds: Tensor | None = None
) -> list[int] | None:
    """Numbers of few rows of a dictionary that explain a space, None if it takes too many.

    Args:
        basis: of the space, orthonormal columns ``(width, direction)``.
        atoms: the dictionary, float32 ``(row, width)``.
        job: ends the pursuit, in vain, when its time is up.
        kinds: int64 ``(row,)``, of which there is one row each; None if there may be several.
    """
    pursuit = Pursuit.of(basis)
    size = atoms.square().sum(1)
    room, chosen = size.clone(), list[int]()
    while len(directions := pursuit.directions):
        if job.expired or len(chosen) >= basis.shape[0] - _PURSUED_SPARE:
            return None
        # Directions are orthogonal to the rows, so that atoms need not be made so.
        share = (atoms @ directions.to(atoms).T).square().sum(1) / room.clamp(min=1e-30)
        share = share.where(room > PURSUED_ROOM * size, 0)
        chosen.append(int(share.argmax()))
        if kinds is not None:
            room[kinds == kinds[chosen[-1]]] = 0
        pursuit = pursuit.plus(atoms[chosen[-1]][None])
        room -= (atoms @ pursuit.rows[-1].to(atoms)).square()
    return chosen


def noisy_rows(matrix: Tensor, atoms: Tensor, most: int) -> list[int]:
    """Numbers of the rows of a dictionary that stand out of a noisy sum of few of them.

    Orthogonal matching pursuit for several measurements (Tropp et al. 2006) that ends where the
    best row explains no more than the largest of as many random ones would of white noise.

    Args:
        matrix: the measurements, ``(measurement, width)``.
        atoms: the dictionary, ``(row, width)``.
        most: largest number of rows.
    """
    residual, atoms = matrix.double(), atoms.double()
    measured, width = residual.shape
    size = atoms.square().sum(1)
    room, chosen, numbers = size.clone(), residual[:0], list[int]()
    nats = math.log(len(atoms))
    while len(numbers) < most:
        # Of white noise it is chi-square with as many degrees of freedom as there are measurements.
        energy = (atoms @ residual.T).square().sum(1) / room.clamp(min=1e-30)
        energy[room < _NOISY_ROOM * size] = 0
        noise = residual.square().sum() / (measured * (width - len(numbers)))
        best = int(energy.argmax())
        if energy[best] <= noise * (measured + 2 * (measured * nats) ** 0.5 + 2 * nats):
            break
        numbers.append(best)
        new = atoms[best]
        for _ in range(2):  # once more against rounding
            new = new - (new @ chosen.T) @ chosen
        new = new / new.norm()
        chosen, residual = (
            torch.cat([chosen, new[None]]),
            residual - (residual @ new)[:, None] * new,
        )
        room = room - (atoms @ new).square()
    return numbers
