"""Lower bounds on epsilon against closed forms and simulated mechanisms."""

import math

import numpy as np
import pytest
from scipy.stats import binom, norm

from experiments.bounds.one_run import CanaryTrial, Claim, any_bound, gaussian_bound
from fedsim.accountant import noise_multiplier

DELTA = 1e-5


def simulated(claim: Claim, canaries: int, seed: int, noise: float = 1.0) -> CanaryTrial:
    rng = np.random.default_rng(seed)
    coins = rng.random(canaries) < 0.5
    shape = (canaries, claim.steps)
    inside = coins[:, None] & (rng.random(shape) < claim.rate)
    places = rng.random(canaries) / claim.rate
    return CanaryTrial(rng.normal(0, noise * claim.noise, shape) + inside, coins, places)


def claim_of(epsilon: float, steps: int = 4, rate: float = 1.0) -> Claim:
    noise = noise_multiplier(steps=steps, rate=rate, target=epsilon, delta=DELTA)
    return Claim(steps, rate, noise, DELTA)


@pytest.mark.parametrize("alarms", [0.01, 0.3])
def test_the_trade_off_curve_has_its_closed_form_where_every_step_samples(alarms: float) -> None:
    closed = norm.cdf(norm.isf(alarms) - 1)  # two standard deviations, four releases
    assert Claim(4, 1 - 1e-9, 2.0, DELTA).misses(alarms) == pytest.approx(closed, abs=2e-3)
    assert Claim(4, 0.1, 2.0, DELTA).misses(alarms) > closed


@pytest.mark.parametrize(
    ("rate", "steps"), [(1.0, 4), pytest.param(0.1, 20, marks=pytest.mark.slow)]
)
def test_bounds_hold_in_200_simulations(rate: float, steps: int) -> None:
    claim = claim_of(4.0, steps, rate)
    for bound in (gaussian_bound, any_bound):
        found = [bound(simulated(claim, 300, seed), claim) for seed in range(200)]
        assert sum(one > claim.epsilon for one in found) <= binom.isf(1e-3, 200, 0.05)
        assert max(found) > 0.1 * claim.epsilon


@pytest.mark.parametrize("error", [0.05, 0.003])
@pytest.mark.parametrize("epsilon", [1.0, 4.0, 8.0, 16.0])
def test_the_bound_holds_and_half_of_epsilon_is_found(epsilon: float, error: float) -> None:
    claim = claim_of(epsilon)
    trials = [simulated(claim, claim.enough(error), seed) for seed in range(200)]
    found = [gaussian_bound(trial, claim, 1 - error) for trial in trials]
    assert sum(one > claim.epsilon for one in found) <= binom.isf(1e-3, 200, error)
    assert sum(one < epsilon / 2 for one in found) <= binom.isf(1e-3, 200, 0.01)


def test_null_scores_give_no_bound() -> None:
    claim = claim_of(4.0)
    rng = np.random.default_rng(0)
    found = []
    for _ in range(100):
        scores = rng.normal(0, claim.noise, (200, claim.steps))
        trial = CanaryTrial(scores, rng.random(200) < 0.5, np.zeros(200))
        found.append(max(gaussian_bound(trial, claim), any_bound(trial, claim)))
    assert sum(one > 0 for one in found) <= 10  # 5 % for each of the two


def test_all_guesses_right_without_delta() -> None:
    coins = np.arange(100) % 2 == 0
    trial = CanaryTrial(np.where(coins, 1.0, 0.0)[:, None], coins, np.zeros(100))
    claim = Claim(1, 1.0, 1e-3, 1e-30)
    # The probability that all guesses are right is (1 + exp(-epsilon)) ** -guesses.
    error = 0.05 / 3
    assert any_bound(trial, claim) == pytest.approx(-math.log(error ** (-1 / 100) - 1), rel=1e-6)
