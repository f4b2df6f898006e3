"""Whether what a guess leaves of an update is white noise, where a wrong word would show."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from scipy.stats import chi2, gamma
from torch import Tensor

_GAMMA = (46.446, 0.186054, 9.84801)
"""Shape, scale and shift of the gamma law near that of Tracy and Widom (Chiani 2014, table I)."""
_GUESS_ROUNDING = 1e-6
"""Error of a whole float32 gradient, as a share of its norm."""
_OUTSIDE_DIMENSIONS = 8
"""Rows and columns outside a guess's spaces that noise is measured on."""


@dataclass(frozen=True)
class Shares:
    """Squared norm of one residual by the space that it lies in, and the dimensions of each.

    The gradient of a weight is ``D^T X``. A guess that is wrong in a word differs from the truth in
    few rows of ``X`` and ``D``, so that the difference lies mostly in the spaces that the guess's
    own rows span. The parts are inside both spaces, inside one of them, the other, and outside.

    Attributes:
        squares: of the four parts, float64.
        dimensions: of the four parts.
        rounding: norm that rounding at the client can add to a part.
        noise: standard deviation of an entry, measured outside both spaces.
    """

    squares: Tensor
    dimensions: Tensor
    rounding: float
    noise: float

    @property
    def scaled(self) -> Tensor:
        """The parts in units of the noise: chi-square if the residual is nothing but noise."""
        excess = (self.squares.clamp(min=0).sqrt() - self.rounding).clamp(min=0)
        return excess.square() / self.noise**2


def shares(residual: Tensor, guess: Tensor, rank: int) -> Shares | None:
    """Split a residual ``(n, m)`` by the row and column space of the guess's own gradient.

    Args:
        residual: update less guess.
        guess: the guess's gradient at its best scale.
        rank: largest rank of that.

    Returns:
        None if too little lies outside the two spaces to measure the noise on.
    """
    rows, columns = residual.shape
    rank = min(rank, rows, columns)
    if min(rows, columns) - rank < _OUTSIDE_DIMENSIONS:
        return None
    rng = torch.Generator().manual_seed(0)
    draws = torch.randn(columns, rank, generator=rng).to(guess)
    left = torch.linalg.qr(guess @ draws).Q
    right = torch.linalg.qr(guess.T @ left).Q
    low, high = left.T @ residual, residual @ right
    both = (low @ right).double().square().sum()
    first, second = low.double().square().sum() - both, high.double().square().sum() - both
    total = residual.double().square().sum()
    squares = torch.stack([both, first, second, total - both - first - second])
    dimensions = squares.new_tensor(
        [
            rank * rank,
            rank * (columns - rank),
            (rows - rank) * rank,
            (rows - rank) * (columns - rank),
        ]
    )
    noise = float(squares[3].clamp(min=0) / dimensions[3]) ** 0.5
    rounding = _GUESS_ROUNDING * float(guess.norm())
    return Shares(squares, dimensions, rounding, max(noise, 1e-30))


def chance(parts: Iterable[Shares], edges: Iterable[float] = ()) -> float:
    """The p-value of the hypothesis that all residuals are noise: Bonferroni over every test.

    Args:
        parts: of each tensor; their three inner parts are tested one by one and summed.
        edges: further p-values.
    """
    parts = list(parts)
    if not parts:
        return 0.0
    scaled = torch.stack([part.scaled[:3] for part in parts])
    dimensions = torch.stack([part.dimensions[:3] for part in parts])
    scaled = torch.cat([scaled, scaled.sum(0, keepdim=True)])
    dimensions = torch.cat([dimensions, dimensions.sum(0, keepdim=True)])
    real = dimensions > 0
    p_values = torch.as_tensor(chi2.sf(scaled[real].numpy(), dimensions[real].numpy()))
    every = [*p_values.tolist(), *edges]
    return float(min(1.0, len(every) * min(every)))


def edge(residual: Tensor, noise: float) -> float:
    """The p-value of the largest singular value, by the law of Tracy and Widom (Johnstone 2001)."""
    wide = residual if residual.shape[0] <= residual.shape[1] else residual.T
    rows, columns = wide.shape
    top = float(torch.linalg.eigvalsh((wide @ wide.T).double())[-1]) / noise**2
    root = (columns - 1) ** 0.5 + rows**0.5
    width = root * ((columns - 1) ** -0.5 + rows**-0.5) ** (1 / 3)
    shape, scale, shift = _GAMMA
    return float(gamma.sf((top - root**2) / width + shift, shape, scale=scale))
