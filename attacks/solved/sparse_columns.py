"""Factors of a ReLU layer's gradient: the one in which each column is silent where ReLU was."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from attacks.observed.first_linear import UnitRows
from attacks.solved.cuts import CUTS
from fedsim.errors import CannotAttack

_TRIMS = 6  # most least-squares fits of one direction
_POOL = 8  # directions kept in the pool for each example


@dataclass(frozen=True)
class Factors:
    """``G = U S V^T``, cut to the rank, without the units that no example touched.

    With ``D`` the slopes ``(example, unit)``, ``G = D^T [X, 1]`` and thus ``D^T = U Q``.

    Attributes:
        left: ``U``, ``(unit, rank)``.
        values: ``S``, descending.
        right: ``V^T``, ``(rank, input + 1)``.
        noise: standard deviation of an entry of ``G``, ``(unit,)``: rounding on the wire, or what
            is left outside the rank, whichever is larger.
        error: the largest error of a row of ``G`` along a direction, ``(unit,)``.
        live: which of the layer's units they are.
        fall: how many times the last singular value is above the next.
    """

    left: Tensor
    values: Tensor
    right: Tensor
    noise: Tensor
    error: Tensor
    live: Tensor
    fall: float

    @property
    def rank(self) -> int:
        """Examples with a gradient of their own."""
        return len(self.values)

    def silence(self, directions: Tensor, slack: float = 1.0) -> Tensor:
        """Which units are silent, ``(..., unit)``, for directions ``(..., rank)``."""
        # An entry of U q has the error of G's row along V S^-1 q.
        length = (directions / self.values).norm(dim=-1, keepdim=True)
        small: Tensor = (directions @ self.left.T).abs() <= slack * length * self.error
        return small

    def unmix(self, directions: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs ``(rank, input)`` and slopes ``(rank, unit)`` if these are all columns of Q."""
        mixed = torch.linalg.inv(directions.T) @ (self.values[:, None] * self.right)
        scale = mixed[:, -1:]
        return mixed[:, :-1] / scale, scale * (directions @ self.left.T)

    def spread(self, slopes: Tensor) -> Tensor:
        """Standard deviation of a pixel of each image with these slopes, ``(rank,)``."""
        deviation: Tensor = (torch.linalg.pinv(slopes.T) * self.noise).norm(dim=1)
        return deviation


def factor(rows: UnitRows, most: int | None) -> Factors:
    """Cut the spectrum where it falls the most.

    Args:
        rows: of the first layer.
        most: how many examples there are, if that is known.

    Raises:
        CannotAttack: the spectrum does not fall, or only behind more values than examples.
    """
    left, values, right = torch.linalg.svd(rows.matrix, full_matrices=False)
    if not float(values[0]) > 0:
        raise CannotAttack(
            "the first layer's update is zero",
            "Attack another round.",
        )
    falls = values[:-1] / values[1:].clamp(min=1e-15 * float(values[0]))
    # Below the largest that rounding makes (of a random matrix, nearly), values fall without cause.
    sides = sum(side**0.5 for side in rows.matrix.shape)
    floor = max(float(rows.noise.square().mean().sqrt()) * sides, 1e-12 * float(values[0]))
    falls = falls.where(values[:-1] > floor, 0)
    rank = int(falls.argmax()) + 1
    fall = float(falls[rank - 1])
    if fall < CUTS.rank_fall:
        raise CannotAttack(
            f"the {len(values)} singular values of the first layer's update fall by no more than "
            f"{fall:.1f} from one to the next, so its rank is full",
            "Noise, pruning, signs, Adam or as many examples as units do that; choose another "
            "attack.",
        )
    if most is not None and rank > most:
        raise CannotAttack(
            f"the first layer's update has rank {rank}, and {most} examples make no more than "
            f"{most}",
            "Weight decay or noise adds to it; choose another attack.",
        )
    left, values, right = left[:, :rank], values[:rank], right[:rank]
    outside = rows.matrix - (left * values) @ right
    spread = outside.square().sum(1).div(outside.shape[1] - rank).sqrt()
    noise = torch.maximum(spread, rows.noise).clamp(min=1e-300)
    error = CUTS.silent_sigmas * noise + rows.alike
    live = (left * values).norm(dim=1) > rank**0.5 * error
    return Factors(left[live], values, right, noise[live], error[live], live, fall)


class Pool:
    """The sparsest directions seen so far.

    A direction is a column ``q`` of ``Q``, a unit vector; ``U q`` are the slopes of one example,
    up to scale, and silent where its unit was.

    Attributes:
        directions: ``(direction, rank)``.
        silent: at how many units each is silent.
        independent: so many, at the front, are the sparsest independent ones.
    """

    def __init__(self, factors: Factors, quiet: Tensor) -> None:
        self._factors = factors
        self._rows = torch.nn.functional.normalize(factors.left, dim=1)
        self._quiet = quiet
        self._size = _POOL * factors.rank
        error = factors.error / factors.left.norm(dim=1)
        self._error = float(error.median() * factors.values.reciprocal().norm())
        # One example has one direction; of more, none is known yet.
        known = 1 if factors.rank == 1 else 0
        self.independent = known
        self.directions = factors.left.new_ones(known, factors.rank)
        self.silent = torch.zeros(known, dtype=torch.int64, device=factors.left.device)

    def sample(self, count: int, rng: torch.Generator) -> bool:
        """Null vectors of ``count`` random submatrices; whether the pool has changed.

        ``rank - 1`` units that are silent for one example fix its direction, which is then silent
        at all other such units, too: that is how it is told from a chance direction.
        """
        units, rank = self._rows.shape
        # As many as the quietest so many units, from 2 rank to all: quiet ones hit more often, and
        # an example that is active at those is hit among all.
        few = min(1.0, 2 * rank / units)
        heads = units * few ** torch.rand(count, 1, generator=rng)
        places = (torch.rand(count, rank, generator=rng) * heads).long().to(self._quiet.device)
        systems = self._rows[self._quiet[places]]
        goal = systems.new_zeros(count, rank, 1)
        goal[:, -1] = 1  # the last row only sets the length
        found, info = torch.linalg.solve_ex(systems, goal)
        # The longer the solution, the less exact its direction. A singular system, as there is
        # where two examples are silent together, has no direction at all.
        error = self._error * found.norm(dim=1)
        good = (info == 0) & (error[:, 0] < CUTS.direction_error)
        found, error = torch.nn.functional.normalize(found[good][:, :, 0], dim=1), error[good]
        silent = (found @ self._rows.T).abs() < error
        counts = silent.sum(1)
        chance = units * rank**0.5 * error[:, 0]  # silent by chance, for a random direction
        enough = torch.nonzero(counts >= rank - 1 + max(3, units // 50) + 2 * chance)[:, 0]
        kept, _ = sparsest(found[enough], counts[enough], CUTS.same_sampled, self._size)
        return self.offer(silent[enough[kept]])

    def offer(self, silent: Tensor) -> bool:
        """Add the directions that are silent at these units, ``(direction, unit)``, if they fit."""
        for _ in range(2):
            silent = silent[silent.any(dim=1)]  # one refined away from all its units is none
            if len(silent) == 0:
                return False
            refined, alone = self._refine(silent)
            silent = self._factors.silence(refined)
        counts = silent.sum(1)
        good = alone & (counts >= self._factors.rank)
        merged = torch.cat([self.directions, refined[good]])
        counts = torch.cat([self.silent, counts[good]])
        kept, self.independent = sparsest(merged, counts, CUTS.same_refined, self._size)
        changed = max(kept, default=0) >= len(self.directions)
        self.directions, self.silent = merged[kept], counts[kept]
        return changed

    def _refine(self, silent: Tensor) -> tuple[Tensor, Tensor]:
        """The direction that fits its silent units best, and whether it is the only one.

        Units that a rough direction made silent by chance miss the fit by more than their error:
        the worst are dropped and the others fitted again.
        """
        factors = self._factors
        weighted = factors.left * factors.values / factors.error[:, None]  # errors are 1
        found, alone = [], []
        for mask in silent:
            rows = weighted[mask]
            for _ in range(_TRIMS):
                _, lengths, basis = torch.linalg.svd(rows, full_matrices=True)
                misses = (rows @ basis[-1]).abs()
                good = misses <= misses.max().div(2).clamp(min=1)
                if bool(good.all()) or int(good.sum()) < factors.rank:
                    break
                rows = rows[good]
            found.append(basis[-1] * factors.values)
            alone.append(len(rows) >= factors.rank and float(lengths[-2]) > len(rows) ** 0.5)
        directions = torch.nn.functional.normalize(torch.stack(found), dim=1)
        return directions, torch.tensor(alone, device=silent.device)


def sparsest(directions: Tensor, silent: Tensor, same: float, most: int) -> tuple[list[int], int]:
    """The sparsest independent directions, as many as there can be, and others, ``most`` in all.

    The others are the sparsest that differ by more than the cosine ``same``. Combinations of the
    directions of two examples are many and may be sparser than the direction of a third one.
    Returns indices, the independent ones first, and how many are independent.
    """
    order = silent.argsort(descending=True, stable=True).tolist()
    chosen: list[int] = []
    basis = directions.new_zeros(0, directions.shape[1])
    for i in order:
        rest = directions[i] - directions[i] @ basis.T @ basis
        if float(rest.norm()) > CUTS.independent:
            chosen.append(i)
            basis = torch.cat([basis, torch.nn.functional.normalize(rest, dim=0)[None]])
        if len(basis) == basis.shape[1]:
            break
    kept = list(chosen)
    for i in order:
        if len(kept) >= most:
            break
        if not bool(((directions[kept] @ directions[i]).abs() > same).any()):
            kept.append(i)
    return kept, len(chosen)
