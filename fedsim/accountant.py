"""Differential-privacy accounting: epsilon from a noise multiplier, and the noise for an epsilon.

The mechanism is the Poisson-sampled Gaussian mechanism (Abadi et al. 2016, algorithm 1), composed
over local steps. With clipping norm C and noise multiplier sigma, one step releases

    sum over the batch of clip(g_i, C) + N(0, (sigma C)^2 I),

where each row is in the batch with probability q. In units of C, the worst case over neighbours
compares Q = N(0, sigma^2) with P = (1 - q) N(0, sigma^2) + q N(1, sigma^2). The privacy losses
log(P / Q) and log(Q / P) are each added up over the steps; epsilon is the smallest number for which
both sums L have E[max(0, 1 - exp(epsilon - L))] <= delta (Koskela et al. 2020).

- Unit of privacy for ``dp_sgd``: one example of one client. Two data sets are neighbours if adding
  or removing that example turns one into the other. ``dp_client`` has units of its own.
- Sampling: a batch of B rows is assumed to hold each of the client's N rows with probability B / N,
  independently (Poisson sampling). Clients actually shuffle their rows and take B at a time, which
  hides less. Epsilon is therefore the customary approximation (Abadi et al. 2016), not a proven
  bound (Chua et al. 2024). The same goes for several passes over all rows and for one pass over a
  subset of them.
- Several passes over the subset drawn for a round reuse the same rows. Either only the draw of the
  subset amplifies privacy, and the round counts as one release, or only the draws of the batches
  from the subset do. Both give an upper bound; the lower one is taken.
- The server knows which clients took part in a round, so drawing clients does not amplify privacy.
  It does not see which rows a client drew.
- Composition: all local steps of all rounds in which the client took part.

Epsilon covers only the tensors that are sent. A loss, count or label sent with them has no noise.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from fedsim.config.federation import FederationConfig
from fedsim.errors import ConfigError
from fedsim.process import PROCESS

_COARSEST = 50.0
"""Coarsest grid of privacy losses; above a few hundred the library's exponential overflows."""
_ERROR = 1e-4
"""Discretisation error of epsilon that the grid is chosen for."""
_LEAST_NOISE = 1e-3
"""Smallest noise multiplier for which sampling is taken into account."""
_SMALLEST, _LARGEST = 1e-6, 1e6
_ORDERS = (*range(2, 65), 128, 256)
"""Orders of the Renyi divergences: integers, for which the library has a closed form."""
_CLOSE = 1e-5
"""Relative tolerance of the noise found for a budget; each evaluation takes seconds."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """How often one client's rows are sampled, and how often the client replies.

    Attributes:
        rate: probability that a given row is in the batch of a given step. Where a round makes
            several passes over a subset of the rows, it is conditional on the row being in that
            subset.
        steps: number of local steps; over the whole run if the client takes part in every round.
        rounds: number of rounds in which the client takes part.
        turn: use of one row within a round; None unless a round makes several passes over a subset.
    """

    rate: float
    steps: int
    rounds: int
    turn: Turn | None = None

    @classmethod
    def of(cls, federation: FederationConfig, rows: int) -> Schedule:
        """Schedule over the whole run of a client that owns ``rows`` rows."""
        used, steps, passes = _local(federation, rows)
        again = passes > 1 and used < rows
        rate = min(federation.batch_size, used) / (used if again else rows)
        turn = Turn.of(federation, rows) if again else None
        return cls(rate, federation.rounds * steps, federation.rounds, turn)


@dataclass(frozen=True, slots=True)
class Turn:
    """Use of one row within one round.

    Attributes:
        chance: probability that the row is used at all.
        visits: largest number of local steps that use the row.
    """

    chance: float
    visits: int

    @classmethod
    def of(cls, federation: FederationConfig, rows: int) -> Turn:
        """Use of each row of a client that owns ``rows`` rows."""
        used, steps, passes = _local(federation, rows)
        return cls(min(used, steps * federation.batch_size) / rows, passes)


def _local(federation: FederationConfig, rows: int) -> tuple[int, int, int]:
    """Rows that a round may use, its steps, and its passes over these rows, rounded up."""
    if federation.protocol == "fedsgd":
        return rows, 1, 1
    used = min(federation.client_rows or rows, rows)
    per_epoch = math.ceil(used / federation.batch_size)
    steps = federation.local_steps or federation.local_epochs * per_epoch
    return used, steps, math.ceil(steps / per_epoch)


@lru_cache(maxsize=1024)
def epsilon(
    *, steps: int, rate: float, noise_multiplier: float, delta: float, replace: bool = False
) -> float:
    """Epsilon at ``delta`` of ``steps`` noisy sums; infinite without noise, 0 without steps.

    Computed from dp-accounting's privacy loss distributions, to within 1e-3, or a relative 1e-5 if
    epsilon is large. At rate 1, k steps are one Gaussian mechanism of noise ``noise_multiplier /
    sqrt(k)`` and the result is exact. Below a noise multiplier of 0.001, which protects nobody, the
    result is an upper bound that ignores the sampling.

    Args:
        steps: number of sums that were sent or trained on.
        rate: probability that a given row is in a given sum, in (0, 1].
        noise_multiplier: standard deviation of the noise in units of the clipping norm.
        delta: probability with which the bound may fail, in (0, 1).
        replace: whether neighbours differ in what one row is, and not in whether it is there.
    """
    if steps == 0:
        return 0.0
    if noise_multiplier == 0:
        return math.inf
    import dp_accounting

    if rate >= 1 or noise_multiplier < _LEAST_NOISE:
        # k sums of the same rows reveal as much as one sum with sqrt(k) times less noise.
        alone = noise_multiplier / math.sqrt(steps) / (2 if replace else 1)
        return float(dp_accounting.get_epsilon_gaussian(alone, delta))
    grid = min(_COARSEST, 1e-2 * max(1.0, (0.3 / noise_multiplier) ** 2))
    rough = _composed(steps, rate, noise_multiplier, delta, grid, replace=replace)
    if rough == 0:  # already an upper bound
        return 0.0
    # As measured, discretisation adds at most steps * grid^2 / 2 once the grid is below epsilon.
    fine = math.sqrt(2 * _ERROR * max(1.0, rough / 10) / steps)
    grid = min(_COARSEST, fine, rough / 100)
    return _composed(steps, rate, noise_multiplier, delta, grid, replace=replace)


def _composed(
    steps: int, rate: float, noise: float, delta: float, grid: float, *, replace: bool
) -> float:
    from dp_accounting import (
        GaussianDpEvent,
        NeighboringRelation,
        PoissonSampledDpEvent,
        SelfComposedDpEvent,
    )
    from dp_accounting.pld import PLDAccountant
    from scipy.optimize import brentq

    relations = (NeighboringRelation.ADD_OR_REMOVE_ONE, NeighboringRelation.REPLACE_ONE)
    accountant = PLDAccountant(relations[replace], grid)
    sampled = PoissonSampledDpEvent(rate, GaussianDpEvent(noise))
    accountant.compose(SelfComposedDpEvent(sampled, steps))
    with np.errstate(over="ignore"):
        epsilon = float(accountant.get_epsilon(delta))
    if math.isfinite(epsilon):
        return epsilon
    # Where exp(-epsilon) is subnormal, the library's quotient overflows but its delta does not.
    low, high = 700.0, 760.0
    if not accountant.get_delta(low) > delta > accountant.get_delta(high):
        return math.inf
    return float(brentq(lambda value: accountant.get_delta(value) - delta, low, high))


@lru_cache(maxsize=1024)
def noise_multiplier(*, steps: int, rate: float, target: float, delta: float) -> float:
    """Smallest noise, in units of the clipping norm, whose ``epsilon`` is at most ``target``.

    Found by Brent's method and rounded up by a relative 2e-5, so that the budget is kept.

    Raises:
        ConfigError: no noise multiplier between 1e-6 and 1e6 gives this epsilon.
    """
    from scipy.optimize import brentq

    def excess(noise: float) -> float:
        return epsilon(steps=steps, rate=rate, noise_multiplier=noise, delta=delta) - target

    low = high = _renyi(steps, rate, target, delta)
    while excess(high) > 0 and high < _LARGEST:
        low, high = high, 1.2 * high
    while excess(low) <= 0 and low > _SMALLEST:
        low, high = low / 1.2, low
    if excess(high) > 0 or excess(low) <= 0:
        raise ConfigError(
            f"epsilon: no noise between {_SMALLEST:g} and {_LARGEST:g} times the clipping norm "
            f"gives {target:g} in {steps} steps at delta {delta:g}. "
            "Set noise_multiplier, or another epsilon."
        )
    return float(brentq(excess, low, high, rtol=_CLOSE)) * (1 + 2 * _CLOSE)


def _renyi(steps: int, rate: float, target: float, delta: float) -> float:
    """Noise multiplier by Renyi accounting: fast and slightly too large, hence a starting point."""
    import warnings

    from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
    from dp_accounting.rdp import RdpAccountant
    from scipy.optimize import brentq

    def excess(power: float) -> float:
        event = PoissonSampledDpEvent(rate, GaussianDpEvent(math.exp(power)))
        total = RdpAccountant(_ORDERS).compose(SelfComposedDpEvent(event, steps))
        return math.log(total.get_epsilon(delta) / target)

    with PROCESS, warnings.catch_warnings(action="ignore"):
        try:
            return math.exp(brentq(excess, math.log(1e-3), math.log(1e3), xtol=1e-2))
        except ValueError:  # outside this range, or without a change of sign
            return 1.0
