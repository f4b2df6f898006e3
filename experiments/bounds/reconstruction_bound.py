"""How much noisy sums can help anybody to guess a private example right."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

_LEAST_NOISE = 0.05
"""Noise in units of the clipping norm below which one sum tells nearly everything; with so little,
sampling is left out, as the grid of privacy losses would get too long."""
_COARSEST = 0.1
_ERROR = 1e-3
_LARGEST = 200.0  # privacy losses that are tried; larger ones are no bound


@lru_cache(maxsize=1024)
def success_bound(
    chance: float, *, steps: int, rate: float, noise_multiplier: float, sure: int = 0
) -> float:
    """The largest chance of any attack to guess right what is guessed with ``chance`` without it.

    Reconstruction robustness (Balle et al. 2022; Hayes et al. 2023) from the curve of delta over
    epsilon, ``min_eps e^eps chance + delta(eps)``; without sampling it is
    ``Phi(Phi^-1(chance) + mu)``, with ``mu = sqrt(sure + steps) / noise_multiplier``. An upper
    bound by a grid of privacy losses where rows are sampled. The attacker may know everything
    else: the other examples, the weights, and which values are likely.

    Sampling hides whether an example was used. It is no help to one of a captured batch, of which
    it is asked what it is and not whether it was there: its sums are ``sure`` to hold it.

    Args:
        chance: of the best guess by somebody who never sees an update, in (0, 1].
        steps: how many sums hold the row with chance ``rate``, each on its own.
        rate: that chance, in (0, 1].
        noise_multiplier: standard deviation of the noise in units of the clipping norm.
        sure: how many more sums hold the row for certain.
    """
    if sure + steps == 0 or chance >= 1:
        return chance
    if noise_multiplier == 0:
        return 1.0
    unsampled = gaussian_bound(chance, math.sqrt(sure + steps) / noise_multiplier)
    if steps == 0 or rate >= 1 or noise_multiplier < _LEAST_NOISE:
        return unsampled
    epsilons, deltas = _curve(sure, steps, rate, noise_multiplier)
    with np.errstate(over="ignore"):
        bound = float((np.exp(epsilons) * chance + deltas).min())
    return min(1.0, bound, unsampled)


def gaussian_bound(chance: float, mu: float) -> float:
    """The same where two neighbouring data sets are ``mu`` standard deviations apart."""
    from scipy.stats import norm

    return float(norm.cdf(norm.ppf(chance) + mu))


@lru_cache(maxsize=64)
def _curve(sure: int, steps: int, rate: float, noise: float) -> tuple[np.ndarray, np.ndarray]:
    """Epsilons and a delta for each, of a row added or removed, whichever is larger."""
    from dp_accounting.pld import privacy_loss_distribution

    # As in the accountant, rounding costs about steps * grid^2 / 2: a thousandth of the bound.
    grid = min(_COARSEST, math.sqrt(2 * _ERROR / (steps + 1)) * max(1.0, (0.3 / noise) ** 2))
    one = privacy_loss_distribution.from_gaussian_mechanism(
        noise, sampling_prob=rate, value_discretization_interval=grid
    )
    composed = one.self_compose(steps)
    if sure:  # sums of the same row tell what one sum with less noise tells
        certain = privacy_loss_distribution.from_gaussian_mechanism(
            noise / math.sqrt(sure), value_discretization_interval=grid
        )
        composed = composed.compose(certain)
    epsilons = np.concatenate([np.linspace(-20, 20, 4001), np.linspace(20, _LARGEST, 1801)])
    return epsilons, np.asarray(composed.get_delta_for_epsilon(epsilons))
