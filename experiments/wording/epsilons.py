"""Epsilon in words: under both relations of neighbours, with what it assumes."""

from __future__ import annotations

from fedsim.accountant import Schedule, epsilon
from fedsim.defenses.chain import Chain
from fedsim.store.files import Record


class Epsilons(Record):
    """Of one run whose neighbours have a unit more or less, or another; a search spends more.

    Attributes:
        epsilon: by the relation of the defense that claims it.
        add_or_remove: None, as all others, of a defense that names no Gaussian mechanism.
    """

    epsilon: float
    add_or_remove: float | None = None
    replace: float | None = None
    rate: float | None = None
    delta: float | None = None

    @classmethod
    def of(cls, steps: int, rate: float, noise: float, delta: float) -> Epsilons:
        """Of Poisson-sampled Gaussian mechanisms, as ``accountant.epsilon`` has them."""
        single = epsilon(steps=steps, rate=rate, noise_multiplier=noise, delta=delta)
        other = epsilon(steps=steps, rate=rate, noise_multiplier=noise, delta=delta, replace=True)
        return cls(epsilon=single, add_or_remove=single, replace=other, rate=rate, delta=delta)

    @classmethod
    def after(cls, chain: Chain, schedule: Schedule) -> Epsilons | None:
        """Of a fitted chain under a schedule; None where it claims nothing."""
        claimed = chain.epsilon_after(schedule)
        if claimed is None:
            return None
        known = [
            cls.of(*each, part.gaussian.delta)
            for part in chain.defenses
            if part.unit is not None and part.gaussian is not None
            for each in part.released(schedule)
        ]
        least = min(known, key=lambda each: each.epsilon, default=cls(epsilon=claimed))
        return least.model_copy(update={"epsilon": claimed})

    @property
    def both(self) -> str:
        """The two numbers with their relations."""
        if self.replace is None:
            return f"{self.epsilon:.3g} (as it claims)"
        return f"{self.add_or_remove:.3g} (add or remove one) and {self.replace:.3g} (replace one)"

    def __str__(self) -> str:
        if self.rate is None:
            return f"epsilon {self.both}, of one run"
        drawn = "no sampling" if self.rate >= 1 else f"Poisson sampling at {self.rate:.3g}"
        return f"epsilon {self.both} at delta {self.delta:g}, {drawn}, of one run"
