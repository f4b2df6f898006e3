"""What an accountant claims: Poisson-sampled Gaussian mechanisms, and what tests they allow."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm

from fedsim import accountant

_STEP = 1.02  # ratio of neighbouring noises that are tried
_EXPONENTS = np.linspace(0, 20, 401)


@dataclass(frozen=True)
class Claim:
    """What the accountant assumes: Poisson-sampled Gaussian mechanisms, composed.

    Attributes:
        steps: number of releases.
        rate: probability that a release contains the protected unit.
        noise: standard deviation divided by the sensitivity.
        delta: probability with which epsilon may be exceeded.
    """

    steps: int
    rate: float
    noise: float
    delta: float

    @property
    def epsilon(self) -> float:
        """The accountant's upper bound."""
        return accountant.epsilon(
            steps=self.steps, rate=self.rate, noise_multiplier=self.noise, delta=self.delta
        )

    def louder(self, power: int) -> Claim:
        """The same claim with ``1.02 ** power`` times the noise."""
        return replace(self, noise=self.noise * _STEP**power)

    def enough(self, error: float) -> int:
        """Canaries with which 99 of 100 bounds on a true claim reach half of its epsilon.

        As if it were one Gaussian mechanism of that epsilon; where rows are drawn, this is rough.

        Args:
            error: probability with which the bound may be wrong.
        """
        whole, half = (
            1 / accountant.noise_multiplier(steps=1, rate=1, target=target, delta=self.delta)
            for target in (self.epsilon, self.epsilon / 2)
        )
        spread = math.sqrt(4 + whole**2 / 2)
        return math.ceil(((norm.isf(error) + norm.isf(0.01)) * spread / (whole - half)) ** 2)

    def misses(self, false_positives: float) -> float:
        """Smallest false negative rate of any test with these false positives.

        The trade-off curve of the mechanism: ``max over e of 1 - delta(e) - exp(e) a`` (Dong et
        al. 2022).
        """
        return float(np.max(1 - _profile(self) - np.exp(_EXPONENTS) * false_positives))


@lru_cache(maxsize=1024)
def _profile(claim: Claim) -> NDArray[np.float64]:
    """Delta of the claim for each of ``_EXPONENTS``."""
    return np.array(losses(claim).get_delta_for_epsilon(list(_EXPONENTS)))


@lru_cache(maxsize=1024)
def losses(claim: Claim) -> Any:  # noqa: ANN401
    """Distribution of the privacy loss, rounded up."""
    from dp_accounting.pld import privacy_loss_distribution as pld

    grid = min(50.0, 1e-2 * max(1.0, (0.3 / claim.noise) ** 2))
    step = pld.from_gaussian_mechanism(
        claim.noise, value_discretization_interval=grid, sampling_prob=claim.rate
    )
    return step.self_compose(claim.steps)
