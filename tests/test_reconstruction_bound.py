"""The bound on guessing right against closed forms and against the best guesser there is."""

import math

import pytest
import torch
from scipy.stats import norm

from fedsim.reconstruction_bound import gaussian_bound, success_bound


@pytest.mark.parametrize(
    ("mu", "chance", "bound"),
    [(1, 0.1, 0.389), (1, 1e-3, 0.018), (4, 0.1, 0.997), (4, 1e-3, 0.819), (4, 1 / 50257, 0.457)],
)
def test_without_sampling_it_is_the_closed_form(mu: float, chance: float, bound: float) -> None:
    assert gaussian_bound(chance, mu) == pytest.approx(bound, abs=6e-4)
    whole = success_bound(chance, steps=1, rate=1.0, noise_multiplier=1 / mu)
    assert whole == pytest.approx(gaussian_bound(chance, mu), rel=1e-9)


@pytest.mark.parametrize("chance", [0.1, 1e-3, 1 / 50257])
@pytest.mark.parametrize("steps", [1, 9])
def test_sampling_nearly_all_rows_is_nearly_the_closed_form(chance: float, steps: int) -> None:
    bound = success_bound(chance, steps=steps, rate=1 - 1e-9, noise_multiplier=1.0)
    exact = gaussian_bound(chance, math.sqrt(steps))
    assert bound == pytest.approx(exact, rel=2e-3)


def test_a_rarer_row_is_harder_to_guess_and_more_steps_help() -> None:
    def bound(steps: int, rate: float) -> float:
        return success_bound(1e-3, steps=steps, rate=rate, noise_multiplier=1.0)

    assert 1e-3 < bound(1, 0.01) < bound(1, 0.1) < bound(10, 0.1) < bound(10, 1.0)


def test_no_noise_bounds_nothing_and_no_step_tells_nothing() -> None:
    assert success_bound(0.01, steps=1, rate=1.0, noise_multiplier=0.0) == 1
    assert success_bound(0.01, steps=0, rate=1.0, noise_multiplier=1.0) == 0.01
    assert success_bound(1.0, steps=1, rate=0.5, noise_multiplier=1.0) == 1


def test_the_best_guesser_stays_below() -> None:
    """Of ten candidates, orthogonal and of norm 1, one is sampled and covered with noise."""
    rng = torch.Generator().manual_seed(0)
    trials, candidates, rate = 40_000, 10, 0.5
    truth = torch.randint(candidates, (trials,), generator=rng)
    seen = torch.randn(trials, candidates, generator=rng)
    taken = torch.rand(trials, generator=rng) < rate
    seen[torch.arange(trials), truth] += taken.float()
    right = float((seen.argmax(1) == truth).float().mean())  # the likeliest candidate
    bound = success_bound(1 / candidates, steps=1, rate=rate, noise_multiplier=1.0)
    error = 4 * math.sqrt(right * (1 - right) / trials)
    assert 0.1 + error < right < bound + error
    assert bound < norm.cdf(norm.ppf(0.1) + 1)
