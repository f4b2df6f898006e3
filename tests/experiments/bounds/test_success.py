"""The bound on guessing right against closed forms and against the best guesser there is."""

import math

import pytest
import torch
from scipy.stats import norm

from experiments.bounds.success import gaussian_bound, success_bound


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


@pytest.mark.parametrize(("sure", "steps"), [(0, 1), (1, 0), (1, 3)])
def test_the_best_guesser_stays_below(sure: int, steps: int) -> None:
    """Of ten candidates, orthogonal and of norm 1, one is in noisy sums, for certain or sampled."""
    rng = torch.Generator().manual_seed(0)
    trials, candidates, rate = 40_000, 10, 0.5
    truth = torch.randint(candidates, (trials,), generator=rng)
    likelihood = torch.zeros(trials, candidates)
    for chance in [1.0] * sure + [rate] * steps:
        seen = torch.randn(trials, candidates, generator=rng)
        taken = torch.rand(trials, generator=rng) < chance
        seen[torch.arange(trials), truth] += taken.float()
        likelihood += (1 - chance + chance * (seen - 0.5).exp()).log()
    right = float((likelihood.argmax(1) == truth).float().mean())
    bound = success_bound(0.1, steps=steps, rate=rate, noise_multiplier=1.0, sure=sure)
    error = 4 * math.sqrt(right * (1 - right) / trials)
    assert 0.1 + error < right < bound + error
    assert bound <= norm.cdf(norm.ppf(0.1) + math.sqrt(sure + steps)) + 1e-12
    if sure:  # beyond what is left of a row that is sampled, and may not have been used
        assert right > success_bound(0.1, steps=1, rate=0.1, noise_multiplier=1.0) + error


def test_a_sum_that_surely_holds_the_row_is_one_that_samples_it_always() -> None:
    def bound(sure: int, steps: int, rate: float) -> float:
        return success_bound(1e-3, steps=steps, rate=rate, noise_multiplier=1.0, sure=sure)

    assert bound(4, 0, 0.1) == pytest.approx(gaussian_bound(1e-3, 2.0), rel=1e-9)
    assert bound(1, 3, 1 - 1e-9) == pytest.approx(gaussian_bound(1e-3, 2.0), rel=2e-3)
    assert bound(4, 1, 1e-9) == pytest.approx(gaussian_bound(1e-3, 2.0), rel=2e-3)
    assert bound(0, 4, 0.1) < bound(1, 3, 0.1) < bound(2, 2, 0.1) < bound(4, 0, 0.1)
