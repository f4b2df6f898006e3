"""What noisy gradients cost in differential privacy: epsilon from noise, and noise from epsilon.

Everything here is about the Poisson-sampled Gaussian mechanism, composed over local steps:

- Unit of privacy of ``dp_sgd``: one example of one client. Two data sets are neighbours if one of
  them has that example more (add or remove one). ``dp_client`` has units of its own.
- Sampling: a step's batch of B is taken to hold each of the client's N rows with chance B / N, on
  its own (Poisson sampling). Clients shuffle their rows and take B at a time, which hides less:
  epsilon is that of the usual approximation (Abadi et al. 2016), not a proof (Chua et al. 2024).
  It goes for several passes over all rows, too, and for one pass over a part of them. Several
  passes over the part that was drawn for a round use the same rows again. Of these the draw of
  the part alone amplifies, a round being one release, or that of each batch from the part alone,
  whichever gives the lower epsilon: both are upper bounds.
- The server saw who took part in a round, so the drawing of clients amplifies nothing. It does
  not see which rows a client drew.
- Composition: all local steps of all rounds in which the client took part.

Epsilon covers the sent tensors alone. A loss, a count or a label that travels beside them has no
noise.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from fedsim.errors import ConfigError
from fedsim.federation import FederationConfig

_COARSEST = 50.0
"""Widest grid of privacy losses; from a few hundred on the library's exponential overflows."""
_ERROR = 1e-4
_LEAST_NOISE = 1e-3
_SMALLEST, _LARGEST = 1e-6, 1e6
_ORDERS = (*range(2, 65), 128, 256)
"""Of Renyi divergences: whole ones, for which the library has a closed form."""
_CLOSE = 1e-5
"""Relative tolerance of the noise for a budget: each trial takes seconds."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """How often one client's rows are drawn from, and how often it replies.

    Attributes:
        rate: chance of one row to be in the batch of one step; of a row that was drawn for the
            round, where a round is several passes over a part of the rows.
        steps: local steps; those of the run if the client takes part in every round.
        rounds: rounds in which the client takes part.
        turn: a row's in one such round; None where no round goes over a part of the rows again.
    """

    rate: float
    steps: int
    rounds: int
    turn: Turn | None = None

    @classmethod
    def of(cls, federation: FederationConfig, rows: int) -> Schedule:
        """The schedule of a client that owns ``rows`` rows."""
        used, steps, passes = _local(federation, rows)
        again = passes > 1 and used < rows
        rate = min(federation.batch_size, used) / (used if again else rows)
        turn = Turn.of(federation, rows) if again else None
        return cls(rate, federation.rounds * steps, federation.rounds, turn)


@dataclass(frozen=True, slots=True)
class Turn:
    """How often one row is used in one round.

    Attributes:
        chance: of the row to be used at all.
        visits: local steps that a used row is in, at most.
    """

    chance: float
    visits: int

    @classmethod
    def of(cls, federation: FederationConfig, rows: int) -> Turn:
        """That of a client that owns ``rows`` rows."""
        used, steps, passes = _local(federation, rows)
        return cls(min(used, steps * federation.batch_size) / rows, passes)


def _local(federation: FederationConfig, rows: int) -> tuple[int, int, int]:
    """Rows that a round may use, its steps, and its passes over these rows, begun ones included."""
    if federation.protocol == "fedsgd":
        return rows, 1, 1
    used = min(federation.client_rows or rows, rows)
    per_epoch = math.ceil(used / federation.batch_size)
    steps = federation.local_steps or federation.local_epochs * per_epoch
    return used, steps, math.ceil(steps / per_epoch)


@lru_cache(maxsize=1024)
def epsilon(*, steps: int, rate: float, noise_multiplier: float, delta: float) -> float:
    """Epsilon at ``delta`` of ``steps`` noisy sums; infinite without noise, 0 without a step.

    By dp-accounting's privacy loss distributions, exact here to 1e-3, or to 1e-5 of a large
    epsilon. Noise below a thousandth of the clipping norm protects nobody, and its epsilon is an
    upper bound that leaves the sampling out.

    Args:
        steps: how many sums were sent or trained on.
        rate: chance of one row to be in a sum, in (0, 1].
        noise_multiplier: standard deviation of the noise in units of the clipping norm.
        delta: chance with which the bound may fail, in (0, 1).
    """
    if steps == 0:
        return 0.0
    if noise_multiplier == 0:
        return math.inf
    import dp_accounting

    if rate >= 1 or noise_multiplier < _LEAST_NOISE:
        # k sums of the same rows tell what one sum with noise less by sqrt(k) tells.
        alone = noise_multiplier / math.sqrt(steps)
        return float(dp_accounting.get_epsilon_gaussian(alone, delta))
    grid = min(_COARSEST, 1e-2 * max(1.0, (0.3 / noise_multiplier) ** 2))
    rough = _composed(steps, rate, noise_multiplier, delta, grid)
    if rough == 0:  # an upper bound, too
        return 0.0
    # Rounding was measured to cost at most steps * grid^2 / 2, once the grid is below epsilon.
    fine = math.sqrt(2 * _ERROR * max(1.0, rough / 10) / steps)
    return _composed(steps, rate, noise_multiplier, delta, min(_COARSEST, fine, rough / 100))


def _composed(steps: int, rate: float, noise: float, delta: float, grid: float) -> float:
    from dp_accounting import (
        GaussianDpEvent,
        NeighboringRelation,
        PoissonSampledDpEvent,
        SelfComposedDpEvent,
    )
    from dp_accounting.pld import PLDAccountant
    from scipy.optimize import brentq

    accountant = PLDAccountant(NeighboringRelation.ADD_OR_REMOVE_ONE, grid)
    sampled = PoissonSampledDpEvent(rate, GaussianDpEvent(noise))
    accountant.compose(SelfComposedDpEvent(sampled, steps))
    with np.errstate(over="ignore"):
        found = float(accountant.get_epsilon(delta))
    if math.isfinite(found):
        return found
    # Where exp(-epsilon) is subnormal the library's quotient overflows; its delta does not.
    low, high = 700.0, 760.0
    if not accountant.get_delta(low) > delta > accountant.get_delta(high):
        return math.inf
    return float(brentq(lambda value: accountant.get_delta(value) - delta, low, high))


@lru_cache(maxsize=1024)
def noise_multiplier(*, steps: int, rate: float, target: float, delta: float) -> float:
    """The least noise, in units of the clipping norm, whose ``epsilon`` is at most ``target``.

    Raises:
        ConfigError: no noise in a range of 1e12 gives this epsilon.
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
    """The noise by Renyi accounting: quick, a little too much, and thus where to begin."""
    import warnings

    from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
    from dp_accounting.rdp import RdpAccountant
    from scipy.optimize import brentq

    def excess(power: float) -> float:
        event = PoissonSampledDpEvent(rate, GaussianDpEvent(math.exp(power)))
        total = RdpAccountant(_ORDERS).compose(SelfComposedDpEvent(event, steps))
        return math.log(total.get_epsilon(delta) / target)

    with warnings.catch_warnings(action="ignore"):
        try:
            return math.exp(brentq(excess, math.log(1e-3), math.log(1e3), xtol=1e-2))
        except ValueError:  # beyond these, or no sign changes
            return 1.0
