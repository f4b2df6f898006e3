"""Signal and noise in a gradient of low rank, by the spiked model of random matrices."""

import math
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor
from torch.nn.functional import normalize

from attacks.observed.readings import Reading

_SPIKE = 1.02
"""Eigenvalue that counts as signal, as a multiple of the Marchenko-Pastur edge."""
SPIKE_FLOOR = 1e-13
"""Eigenvalue that is more than float64 rounding, as a share of the largest."""
_COMPLETION_ROUNDS = 20
"""Rounds of imputation of entries that were not sent."""


@dataclass(frozen=True)
class Spectrum:
    """The directions of ``Y = S + sigma Z`` that stand out of the noise.

    For a low-rank ``S`` and white noise ``Z`` of shape ``(n, m)`` the eigenvalues of ``Y Y^T`` that
    belong to noise end at the Marchenko-Pastur edge. One above it reveals the strength of its
    direction and how far noise has turned it (Benaych-Georges and Nadakuditi 2012). The noise is
    measured on the bulk (Gavish and Donoho 2014), so that no declaration is needed.

    Attributes:
        basis: orthonormal estimated directions, float64 ``(n, rank)``.
        cosines: estimated squared cosine of each with the true direction, in (0, 1].
        strengths: squared singular values of ``S``.
        noise: standard deviation ``sigma`` of an entry.
        matrix: ``Y``, float64.
    """

    basis: Tensor
    cosines: Tensor
    strengths: Tensor
    noise: float
    matrix: Tensor

    @property
    def rank(self) -> int:
        """Number of directions."""
        return self.basis.shape[1]

    @property
    def width(self) -> int:
        """Dimensions of a direction."""
        return self.basis.shape[0]


def spectrum(matrix: Tensor, most: int) -> Spectrum:
    """The spikes of a matrix ``(n, m)``, of which the signal can have at most ``most``."""
    matrix = matrix.double()
    rows, columns = matrix.shape
    longer, ratio = max(rows, columns), min(rows, columns) / max(rows, columns)
    values, vectors = _eigh(matrix @ matrix.T if rows <= columns else matrix.T @ matrix)
    values, vectors = values.flip(0).clamp(min=0), vectors.flip(1)
    most = min(most, len(values) - 1)
    variance = float(values.median()) / (longer * _median(ratio))
    strength, seen = _spikes(values, variance, longer, ratio)
    if int(seen.sum()) > most:
        # What is left below the largest possible rank is noise, whatever its shape.
        variance = float(values[most:].sum()) / ((rows - most) * (columns - most))
        strength, seen = _spikes(values, variance, longer, ratio)
        seen[most:] = False
    strength, variance = strength[seen], max(variance, 1e-300)
    side = ratio if rows <= columns else 1.0
    cosines = ((1 - ratio / strength**2) / (1 + side / strength)).clamp(1e-6, 1)
    basis = vectors[:, seen]
    if rows > columns:
        basis = normalize(matrix @ basis, dim=0)
    return Spectrum(basis, cosines, strength * longer * variance, variance**0.5, matrix)


def completed(reading: Reading, most: int, rounds: int = _COMPLETION_ROUNDS) -> Tensor:
    """The matrix with the entries that were not sent imputed from a low rank, float64.

    Expectation-maximisation: shrink the singular values (Gavish and Donoho 2017) of the present
    matrix, then replace each entry that is known to an interval only by its mean under a normal
    distribution about that fit, truncated to the interval. For random entries this is soft-impute
    (Mazumder et al. 2010), for signs one-bit matrix completion (Davenport et al. 2014), and for the
    largest entries a Tobit model.
    """
    if reading.complete or not reading.value.any():
        return reading.value.double()
    value = reading.value.float()
    low, high = reading.lower.float(), reading.upper.float()
    known = low == high
    rows, columns = value.shape
    longer, ratio = max(rows, columns), min(rows, columns) / max(rows, columns)
    most = min(most, min(rows, columns) - 1)
    for _ in range(rounds):
        gram = value @ value.T if rows <= columns else value.T @ value
        gram.diagonal().add_(1e-7 * gram.diagonal().mean())
        values, vectors = _eigh(gram)
        values = values.clamp(min=0)
        variance = float(values[:-most].sum()) / ((rows - most) * (columns - most))
        variance = max(variance, 1e-12 * float(values[-1]), 1e-30)
        scaled = values / (longer * variance)
        excess = (scaled - 1 - ratio).clamp(min=0)
        shrunk = (excess.square() - 4 * ratio).clamp(min=0).sqrt() / scaled.clamp(min=1e-30)
        shrunk[:-most] = 0
        shrink = (vectors * shrunk) @ vectors.T
        fit = shrink @ value if rows <= columns else value @ shrink
        value = torch.where(known, low, _truncated(fit, low, high, variance**0.5))
    return value.double()


def _truncated(mean: Tensor, low: Tensor, high: Tensor, sigma: float) -> Tensor:
    """Mean of a normal distribution about ``mean``, truncated to ``[low, high]``."""
    a, b = ((low - mean) / sigma).clamp(-30, 30), ((high - mean) / sigma).clamp(-30, 30)
    mass = torch.special.ndtr(b) - torch.special.ndtr(a)
    slope = ((-a * a / 2).exp() - (-b * b / 2).exp()) / math.sqrt(2 * math.pi)
    moved = mean + sigma * torch.where(mass > 1e-9, slope / mass.clamp(min=1e-9), 0.0)
    return moved.maximum(low).minimum(high)


def _spikes(values: Tensor, variance: float, longer: int, ratio: float) -> tuple[Tensor, Tensor]:
    """Strength of each eigenvalue in units of the noise, and whether it stands out of it."""
    floor = SPIKE_FLOOR * float(values[0])
    scaled = values / max(longer * variance, 1e-300)
    excess = (scaled - 1 - ratio).clamp(min=0)
    strength = (excess + (excess.square() - 4 * ratio).clamp(min=0).sqrt()) / 2
    edge = _SPIKE * (1 + ratio**0.5) ** 2
    return strength, (scaled > edge) & (values > floor)


def _eigh(gram: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues ascending, and eigenvectors; a matrix with many equal ones is tried slower."""
    try:
        values, vectors = torch.linalg.eigh(gram)
    except RuntimeError:  # LinAlgError
        vectors, values, _ = torch.linalg.svd(gram.double())
        values, vectors = values.flip(0).to(gram), vectors.flip(1).to(gram)
    return values, vectors


@lru_cache(maxsize=64)
def _median(ratio: float) -> float:
    """Median of the Marchenko-Pastur law of unit variance."""
    low, high = (1 - ratio**0.5) ** 2, (1 + ratio**0.5) ** 2
    x = torch.linspace(low, high, 4001, dtype=torch.float64)[1:-1]
    mass = (((high - x) * (x - low)).sqrt() / x).cumsum(0)
    return float(x[torch.searchsorted(mass, mass[-1] / 2)])
