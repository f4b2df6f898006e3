"""Epsilon in words: under both relations of neighbours, with what it assumes."""

from __future__ import annotations

from typing import NamedTuple

from fedsim.accountant import epsilon


class Epsilons(NamedTuple):
    """Of one run whose neighbours have a unit more or less, or another; a search spends more."""

    add_or_remove: float
    replace: float
    rate: float
    delta: float

    @classmethod
    def of(cls, steps: int, rate: float, noise: float, delta: float) -> Epsilons:
        """Of Poisson-sampled Gaussian mechanisms, as ``accountant.epsilon`` has them."""
        one = epsilon(steps=steps, rate=rate, noise_multiplier=noise, delta=delta)
        other = epsilon(steps=steps, rate=rate, noise_multiplier=noise, delta=delta, replace=True)
        return cls(one, other, rate, delta)

    def __str__(self) -> str:
        drawn = "no sampling" if self.rate >= 1 else f"Poisson sampling at {self.rate:.3g}"
        both = f"{self.add_or_remove:.3g} (add or remove one) and {self.replace:.3g} (replace one)"
        return f"epsilon {both} at delta {self.delta:g}, {drawn}, of one run"
