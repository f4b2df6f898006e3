"""Observed weight gradients as thin factors: a batch of ``r`` tokens has rank at most ``r``."""

import math
from functools import lru_cache

import torch
from torch import Tensor

_FACTOR_MISS = 1e-5
"""Largest part of a gradient's norm that its factors may miss; rounding of float32 is about
1e-7."""


def factor(matrix: Tensor, rank: int) -> tuple[Tensor, Tensor] | None:
    """``left (a, rank)`` and ``right (b, rank)`` with ``left right^T = matrix``, or None.

    One pass of a randomised range finder (Halko et al. 2011) is exact for a matrix of a rank below
    ``rank``. None if the factors are not exact or would save no work.

    Args:
        matrix: float64 ``(a, b)``.
        rank: number of columns to try.
    """
    if not 0 < 2 * rank <= min(matrix.shape):
        return None
    generator = torch.Generator(matrix.device).manual_seed(0)
    probe = torch.randn(
        matrix.shape[1], rank, generator=generator, dtype=matrix.dtype, device=matrix.device
    )
    left = torch.linalg.qr(matrix @ probe).Q
    right = matrix.T @ left
    miss = float((matrix - left @ right.T).norm())
    return (left, right) if miss <= _FACTOR_MISS * float(matrix.norm()) else None


def shrink(matrix: Tensor, most: float = math.inf) -> Tensor:
    """Estimate of a low-rank matrix from its sum with independent Gaussian noise.

    Gavish and Donoho (2017) shrink each singular value ``y`` of an ``m x n`` matrix to
    ``sqrt((y^2 - (m + n) v)^2 - 4 m n v^2) / y`` for the noise variance ``v``, or to 0 if
    ``y <= sqrt(v) (sqrt(m) + sqrt(n))``, which minimises the Frobenius error. ``v`` follows from
    the median singular value, which is noise if the rank is below half of the smaller side.

    Args:
        matrix: signal plus noise; unchanged without noise.
        most: upper bound of ``v``, if known; required for matrices of a higher rank.
    """
    rows, columns = matrix.shape
    left, values, right = torch.linalg.svd(matrix, full_matrices=False)
    variance = values.median().square() / _median_eigenvalue(min(rows, columns), max(rows, columns))
    variance = variance.clamp(max=most)
    square = values.square()
    inside = (square - (rows + columns) * variance).square() - 4 * rows * columns * variance**2
    above = values > variance.sqrt() * (rows**0.5 + columns**0.5)
    shrunk = torch.where(above, inside.clamp(min=0).sqrt() / values, 0)
    result: Tensor = (left * shrunk) @ right
    return result


@lru_cache
def _median_eigenvalue(small: int, large: int) -> float:
    """Median of the eigenvalues of ``N N^T`` for unit noise ``N (small, large)``.

    Computed from the density of Marchenko and Pastur (1967) on a grid.
    """
    ratio = small / large
    low, high = (1 - ratio**0.5) ** 2, (1 + ratio**0.5) ** 2
    grid = torch.linspace(low, high, 20_001, dtype=torch.float64)
    density = ((high - grid) * (grid - low)).clamp(min=0).sqrt() / grid.clamp(min=1e-12)
    share = density.cumsum(0) / density.sum()
    return float(grid[int((share < 0.5).sum())]) * large
