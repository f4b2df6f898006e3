"""Bounds from information, against channels whose best estimator is known."""

import math

import pytest
import torch
from torch import Tensor

from experiments.bounds.information import Listed, gaussian_error, lead, most, noise_information


def linear(std: float, trials: int = 4000) -> tuple[Tensor, Tensor, Tensor]:
    """A linear map of white Gaussian rows under noise: map, rows, what is seen."""
    rng = torch.Generator().manual_seed(0)
    jacobian = torch.randn(8, 5, generator=rng, dtype=torch.float64)
    truth = torch.randn(trials, 5, generator=rng, dtype=torch.float64)
    noise = torch.randn(trials, 8, generator=rng, dtype=torch.float64)
    return jacobian, truth, truth @ jacobian.T + std * noise


def guessed(jacobian: Tensor, seen: Tensor, std: float, level: float = 1.0) -> Tensor:
    """The mean given what is seen; at another level than 1, of a wrong prior."""
    inside = jacobian.T @ jacobian / std**2 + level * torch.eye(5).double()
    found: Tensor = torch.linalg.solve(inside, jacobian.T @ seen.T / std**2)
    return found.T


@pytest.mark.parametrize("std", [0.1, 1.0, 10.0])
def test_the_measured_information_is_the_channels(std: float) -> None:
    jacobian, truth, _ = linear(std)
    sent = truth @ jacobian.T
    nats = noise_information(sent[:400], sent[400:], std)
    gram = torch.eye(8).double() + jacobian @ jacobian.T / std**2
    exact = 0.5 * float(torch.linalg.slogdet(gram)[1])
    assert float(nats.mean()) == pytest.approx(exact, rel=0.05)
    few = noise_information(sent[:3], sent[400:], std)  # a poor fit is a looser bound
    assert float(few.mean()) > exact


@pytest.fixture(scope="module")
def listed() -> Listed:
    return Listed(linear(1.0)[1][:200], torch.zeros(200, dtype=torch.int64))


@pytest.mark.parametrize("std", [0.3, 1.0, 3.0, 10.0, 100.0])
def test_no_estimator_beats_its_bounds_in_a_linear_channel(std: float, listed: Listed) -> None:
    jacobian, truth, seen = linear(std)
    gram = torch.eye(8).double() + jacobian @ jacobian.T / std**2
    nats = 0.5 * float(torch.linalg.slogdet(gram)[1])
    for level in (0.3, 1.0, 3.0, 1e9):
        error = (guessed(jacobian, seen, std, level) - truth).square().mean(1)
        spread = 3 * float(error.std()) / math.sqrt(len(error))
        assert float(error.mean()) + spread >= gaussian_error(torch.ones(5).double(), nats)
        assert float(error.mean()) + spread >= listed.error(nats)
        for radius in (0.3, 1.0, 2.0):
            hit = float((error < radius).double().mean())
            blind = float((truth.square().mean(1) < radius).double().mean())  # a ball at the mode
            assert hit <= most(blind, nats) + 0.02
            assert hit - blind <= lead(nats) + 0.02


def test_a_binary_channel_reaches_the_bound_on_a_mean() -> None:
    """One of n is sent as it is with probability 1 - e, else nothing tells it from the others."""
    many = 50
    for error in (0.0, 0.3, 0.9, 1.0):
        right = 1 - error + error / many
        wrong = (1 - right) / (many - 1)
        nats = math.log(many) + right * math.log(right)
        if wrong > 0:
            nats += (1 - right) * math.log(wrong)
        assert most(1 / many, max(nats, 0.0)) == pytest.approx(right, abs=1e-6)


def test_ends_of_the_bound() -> None:
    assert most(0.2, 0.0) == pytest.approx(0.2)
    assert most(0.2, 100.0) == most(1.0, 0.0) == lead(2.0) == 1.0
    assert most(0.5, 1e-3) - 0.5 == pytest.approx(lead(1e-3), rel=0.01)


def test_a_list_says_nothing_beyond_its_length_and_knows_the_mean() -> None:
    rng = torch.Generator().manual_seed(1)
    images = torch.rand(60, 12, generator=rng)
    classes = torch.arange(60) % 2
    listed = Listed(images, classes)
    spread = sum(float(images[classes == c].var(0, correction=0).mean()) for c in (0, 1)) / 2
    assert listed.error(0.0) == pytest.approx(spread, rel=0.2)
    assert listed.error(0.0) <= spread
    assert listed.error(math.log(30)) < 1e-3
    bounds = [listed.error(nats) for nats in (0.0, 0.1, 1.0, 2.0)]
    assert bounds == sorted(bounds, reverse=True)


def test_water_is_filled_in_reverse() -> None:
    power = torch.tensor([4.0, 1.0, 0.25]).double()
    assert gaussian_error(power, 0.0) == pytest.approx(float(power.mean()))
    # Two nats of the first part alone would leave it below the second: both are levelled.
    level = math.sqrt(4.0) * math.exp(-1.0)
    assert gaussian_error(power, 1.0) == pytest.approx((2 * level + 0.25) / 3, rel=1e-6)
