"""Factorisation of a ReLU layer's gradient whose columns are zero at the inactive units."""

from dataclasses import dataclass

import torch
from torch import Tensor

from attacks.observed.first_linear import UnitRows
from attacks.observed.readings import read
from fedsim.errors import CannotAttack

_TRIMS = 6  # most least-squares fits of one direction
_POOL = 8  # directions kept in the pool for each example
_RANK_FALL = 10.0
"""Least ratio of the last singular value of the examples to the first of rounding."""
_SILENT_SIGMAS = 10.0
"""Standard deviations of rounding below which a unit's slope counts as silent."""
_DIRECTION_ERROR = 0.03
"""Largest error of a sampled direction that is worth refining."""
_SAME_SAMPLED = 1 - 1e-4
"""Cosine from which two directions are one before refinement."""
_SAME_REFINED = 1 - 1e-5
"""Cosine from which two directions are one after refinement."""
_INDEPENDENT = 3e-3
"""Least distance of a direction from the span of those chosen before."""
_KNOWN_RANK_FALL = 1.25
"""The same ratio, where the number of examples is known and noise or a coarse wire fills the rest
of the spectrum; pure noise gives 1.0."""


@dataclass(frozen=True)
class Factors:
    """The truncated SVD ``G = U S V^T`` without the units that no example activated.

    With the slopes ``D (example, unit)``, ``G = D^T [X, 1]`` and therefore ``D^T = U Q`` for an
    invertible ``Q (rank, rank)``.

    Attributes:
        left: ``U``, ``(unit, rank)``.
        values: ``S``, descending.
        right: ``V^T``, ``(rank, input + 1)``.
        noise: standard deviation of an entry in each row of ``G``, ``(unit,)``: rounding on the
            wire or the residual of the truncation, whichever is larger.
        error: largest error of a row of ``G`` along a direction, ``(unit,)``.
        live: the rows of ``U`` among the layer's units, bool ``(all units,)``.
        ends: whether the spectrum itself falls there, and not the number of examples decides.
    """

    left: Tensor
    values: Tensor
    right: Tensor
    noise: Tensor
    error: Tensor
    live: Tensor
    ends: bool

    @property
    def rank(self) -> int:
        """Number of examples with linearly independent gradients."""
        return len(self.values)

    def silence(self, directions: Tensor, slack: float = 1.0) -> Tensor:
        """The silent units, bool ``(..., unit)``, of directions ``(..., rank)``."""
        # The error of an entry of U q is that of the same row of G along V S^-1 q.
        length = (directions / self.values).norm(dim=-1, keepdim=True)
        small: Tensor = (directions @ self.left.T).abs() <= slack * length * self.error
        return small

    def unmix(self, directions: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs ``(rank, input)`` and slopes ``(rank, unit)`` for the columns of ``Q``.

        ``[X, 1] = Q^-1 S V^T`` up to one factor for each row, which the last column, the constant
        input of the bias, determines; ``D^T = U Q`` is rescaled by the same factor. Columns that
        are alike share what both explain.
        """
        inverse, singular = torch.linalg.inv_ex(directions.T)
        if singular:
            inverse = torch.linalg.pinv(directions.T)
        mixed = inverse @ (self.values[:, None] * self.right)
        scale = mixed[:, -1:]
        return mixed[:, :-1] / scale, scale * (directions @ self.left.T)

    def inputs(self, slopes: Tensor) -> Tensor:
        """Inputs ``(rank, input)`` by least squares for slopes ``(rank, unit)`` up to scale."""
        mixed = torch.linalg.pinv(slopes.T) @ (self.left * self.values) @ self.right
        inputs: Tensor = mixed[:, :-1] / mixed[:, -1:]
        return inputs

    def spread(self, slopes: Tensor) -> Tensor:
        """Standard deviation of a pixel in each image with these slopes, ``(rank,)``."""
        deviation: Tensor = (torch.linalg.pinv(slopes.T) * self.noise).norm(dim=1)
        return deviation


def factor(rows: UnitRows, most: int | None) -> Factors:
    """The SVD truncated at the largest ratio of consecutive singular values.

    Where noise or a coarse wire leaves no large ratio, the number of examples is the rank if the
    spectrum falls there by more than noise alone does.

    Args:
        rows: of the first layer.
        most: number of examples, if known.

    Raises:
        CannotAttack: no ratio is large enough, or the rank exceeds the number of examples.
    """
    left, values, right = torch.linalg.svd(rows.matrix, full_matrices=False)
    if not float(values[0]) > 0:
        raise CannotAttack(
            "the first layer's update is zero",
            "Attack another round.",
        )
    falls = values[:-1] / values[1:].clamp(min=1e-15 * float(values[0]))
    # Below the largest singular value of the rounding (about that of a random matrix), the ratios
    # mean nothing.
    sides = sum(side**0.5 for side in rows.matrix.shape)
    floor = max(float(rows.noise.square().mean().sqrt()) * sides, 1e-12 * float(values[0]))
    falls = falls.where(values[:-1] > floor, 0)
    rank = int(falls.argmax()) + 1
    fall = float(falls[rank - 1])
    if most is not None and rank > most and float(falls[:most].max()) >= _RANK_FALL:
        # What lies behind so great a fall is weaker than any example: rounding in steps of a size
        # that the numbers do not show, as of differences that were scaled.
        rank = int(falls[:most].argmax()) + 1
        fall = float(falls[rank - 1])
    known = float(falls[most - 1]) if most is not None and most <= len(falls) else 0.0
    if fall < _RANK_FALL and most is not None and known >= _KNOWN_RANK_FALL:
        rank, fall = most, known
    elif fall < _RANK_FALL:
        raise CannotAttack(
            f"consecutive singular values of the first layer's update ({len(values)} in all) "
            f"differ by a factor of at most {fall:.1f}, so its rank is full",
            f"{_cause(rows.matrix)} Choose another attack.",
        )
    if most is not None and rank > most:
        live = rows.matrix[rows.matrix.any(1)][:, rows.matrix.any(0)]
        if rank < min(live.shape):
            raise CannotAttack(
                f"the first layer's update has rank {rank}, as of {rank} inputs, and num_examples "
                f"is {most}",
                f"Pass num_examples={rank}, or leave it out; entries that were cut and steps that "
                "orthogonalise (Muon) add to the rank of one.",
            )
        raise CannotAttack(
            f"the first layer's update has rank {rank}, and {most} examples have a rank of at most "
            f"{most}",
            "Weight decay, noise, left-out entries and steps that orthogonalise (Muon) add to the "
            "rank; for one example 'closed_form' tells some of them apart. Choose another attack.",
        )
    left, values, right = left[:, :rank], values[:rank], right[:rank]
    outside = rows.matrix - (left * values) @ right
    spread = outside.square().sum(1).div(outside.shape[1] - rank).sqrt()
    noise = torch.maximum(spread, rows.noise).clamp(min=1e-300)
    error = _SILENT_SIGMAS * noise + rows.alike
    live = (left * values).norm(dim=1) > rank**0.5 * error
    ends = fall >= _RANK_FALL
    return Factors(left[live], values, right, noise[live], error[live], live, ends)


class Pool:
    """The sparsest directions seen so far.

    A direction is a unit vector ``q``, proportional to a column of ``Q``. ``U q`` holds the slopes
    of one example up to scale; it is zero at the units that the example left inactive.

    Attributes:
        directions: ``(direction, rank)``.
        silent: number of units at which each direction is silent.
        independent: number of directions at the front that are the sparsest independent ones.
    """

    def __init__(self, factors: Factors, quiet: Tensor) -> None:
        self._factors = factors
        self._rows = torch.nn.functional.normalize(factors.left, dim=1)
        self._quiet = quiet
        self._size = _POOL * factors.rank
        error = factors.error / factors.left.norm(dim=1)
        self._error = float(error.median() * factors.values.reciprocal().norm())
        # A single example has a single direction; of several, none is known yet.
        known = 1 if factors.rank == 1 else 0
        self.independent = known
        self.directions = factors.left.new_ones(known, factors.rank)
        self.silent = torch.zeros(known, dtype=torch.int64, device=factors.left.device)

    def sample(self, count: int, rng: torch.Generator) -> bool:
        """Add the null vectors of ``count`` random submatrices; return whether the pool changed.

        ``rank - 1`` units that are inactive for one example determine its direction ``q``, as
        ``U_A q = 0`` for their rows ``A`` (Dimitrov et al. 2024). The direction is
        then silent at all other inactive units too, which sets it apart from a random one.
        """
        units, rank = self._rows.shape
        # Rows come from the quietest units, from 2 rank of them to all: quiet units are more often
        # inactive together, and an example that is active there is found among all.
        few = min(1.0, 2 * rank / units)
        heads = units * few ** torch.rand(count, 1, generator=rng)
        places = (torch.rand(count, rank, generator=rng) * heads).long().to(self._quiet.device)
        systems = self._rows[self._quiet[places]]
        goal = systems.new_zeros(count, rank, 1)
        goal[:, -1] = 1  # the last row only sets the length
        solutions, info = torch.linalg.solve_ex(systems, goal)
        # The longer the solution, the less exact its direction. Where two examples are inactive
        # together the system is singular and has no unique direction.
        error = self._error * solutions.norm(dim=1)
        good = (info == 0) & (error[:, 0] < _DIRECTION_ERROR)
        solutions, error = (
            torch.nn.functional.normalize(solutions[good][:, :, 0], dim=1),
            error[good],
        )
        silent = (solutions @ self._rows.T).abs() < error
        counts = silent.sum(1)
        chance = units * rank**0.5 * error[:, 0]  # silent by chance, for a random direction
        enough = torch.nonzero(counts >= rank - 1 + max(3, units // 50) + 2 * chance)[:, 0]
        sparse, _ = sparsest(solutions[enough], counts[enough], _SAME_SAMPLED, self._size)
        return self.offer(silent[enough[sparse]])

    def offer(self, silent: Tensor) -> bool:
        """Add the directions that are silent at these units, ``(direction, unit)``, if they fit."""
        for _ in range(2):
            silent = silent[silent.any(dim=1)]  # one refined away from all its units is none
            if len(silent) == 0:
                return False
            refined, alone = self.refine(silent)
            silent = self._factors.silence(refined)
        counts = silent.sum(1)
        good = alone & (counts >= self._factors.rank)
        merged = torch.cat([self.directions, refined[good]])
        counts = torch.cat([self.silent, counts[good]])
        sparse, self.independent = sparsest(merged, counts, _SAME_REFINED, self._size)
        changed = max(sparse, default=0) >= len(self.directions)
        self.directions, self.silent = merged[sparse], counts[sparse]
        return changed

    def refine(self, silent: Tensor) -> tuple[Tensor, Tensor]:
        """The least-squares direction for each set of silent units, and whether it is unique.

        Units that look silent only by chance under a rough direction miss the fit by more than
        their error: the worst are dropped, and the others are fitted again.
        """
        factors = self._factors
        weighted = (factors.left * factors.values / factors.error[:, None]).cpu()  # errors are 1
        fitted, alone, values = [], [], factors.values.cpu()
        for mask in silent.cpu():
            rows = weighted[mask]
            for _ in range(_TRIMS):
                _, lengths, basis = torch.linalg.svd(rows, full_matrices=True)
                misses = (rows @ basis[-1]).abs()
                good = misses <= misses.max().div(2).clamp(min=1)
                if bool(good.all()) or int(good.sum()) < factors.rank:
                    break
                rows = rows[good]
            fitted.append(basis[-1] * values)
            alone.append(len(rows) >= factors.rank and float(lengths[-2]) > len(rows) ** 0.5)
        directions = torch.nn.functional.normalize(torch.stack(fitted), dim=1)
        return directions.to(silent.device), torch.tensor(alone, device=silent.device)


def sparsest(directions: Tensor, silent: Tensor, same: float, most: int) -> tuple[list[int], int]:
    """Indices of the sparsest independent directions and then of others, at most ``most``.

    The others are the sparsest whose cosine with those kept is at most ``same``. They are needed
    because mixtures of two examples are many and may be sparser than the direction of a third.
    Returned with the number of independent directions, which come first. Computed on the CPU, as
    each choice depends on those before.
    """
    directions = directions.cpu()
    order = silent.argsort(descending=True, stable=True).tolist()
    chosen: list[int] = []
    basis = directions.new_zeros(0, directions.shape[1])
    for i in order:
        rest = directions[i] - directions[i] @ basis.T @ basis
        if float(rest.norm()) > _INDEPENDENT:
            chosen.append(i)
            basis = torch.cat([basis, torch.nn.functional.normalize(rest, dim=0)[None]])
        if len(basis) == basis.shape[1]:
            break
    indices = list(chosen)
    for i in order:
        if len(indices) >= most:
            break
        if not bool(((directions[indices] @ directions[i]).abs() > same).any()):
            indices.append(i)
    return indices, len(chosen)


def _cause(update: Tensor) -> str:
    """What the update shows of why its rank is full."""
    seen = read(update)
    if seen.signs:
        return "All entries have one size: signs were sent, or the client's optimizer is Adam."
    if not seen.complete:
        return "Entries are zero here and there: the update was pruned."
    if seen.step:
        return "All entries lie on a grid: the update was quantised."
    return (
        "The update does not show why: as many examples as units, noise, or several steps of an "
        "optimizer that is not SGD would do it, and so would a wrong kind of reply."
    )
