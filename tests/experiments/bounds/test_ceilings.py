"""Ceilings of PSNR against a linear model, where the best attack is known, and autograd."""

import math

import pytest
import torch
from torch import Tensor

from attacks.observed.replay import replay
from experiments.bounds.ceilings import (
    Ceilings,
    ceilings,
    information,
    least_error,
    obstacle,
    spectrum_precision,
)
from fedsim.magnitudes import cut
from fedsim.tasks import load_task
from fedsim.types import Batch
from tests.apps.cases import IMAGES, Make, simulate

SMALL = {"task": {"image_size": 8}, "federation": {"rounds": 1, "clients": 2}}


def toy(std: float, trials: int = 20_000) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """A linear map of images with a Gaussian prior, under noise: map, precision, truth, seen."""
    rng = torch.Generator().manual_seed(0)
    mixing = torch.randn(6, 6, generator=rng, dtype=torch.float64)
    covariance = mixing @ mixing.T + 0.1 * torch.eye(6)
    jacobian = torch.randn(4, 6, generator=rng, dtype=torch.float64)
    root = torch.linalg.cholesky(covariance)
    truth = torch.randn(trials, 6, generator=rng, dtype=torch.float64) @ root.T
    noise = torch.randn(trials, 4, generator=rng, dtype=torch.float64)
    return jacobian, torch.linalg.inv(covariance), truth, truth @ jacobian.T + std * noise


@pytest.mark.parametrize("std", [0.1, 1.0, 10.0])
def test_of_a_linear_model_it_is_reached_and_never_beaten(std: float) -> None:
    jacobian, precision, truth, seen = toy(std)
    bound = least_error(jacobian.T @ jacobian, std, precision)

    def error(assumed: Tensor, level: float) -> float:
        inside = jacobian.T @ jacobian / level**2 + assumed
        guess = torch.linalg.solve(inside, jacobian.T @ seen.T / level**2).T
        return float((guess - truth).square().mean())

    assert error(precision, std) == pytest.approx(bound, rel=0.03)
    for wrong in (error(torch.eye(6).double(), std), error(precision, 3 * std)):
        assert wrong > 0.99 * bound
    assert error(torch.eye(6).double() * 0.3, std) > 1.02 * bound


def test_the_spectrum_of_white_images_is_flat_and_of_smooth_ones_is_not() -> None:
    rng = torch.Generator().manual_seed(1)
    white = 0.5 + 0.1 * torch.randn(4000, 2, 4, 4, generator=rng)
    precision = spectrum_precision(white)
    assert torch.allclose(precision.diagonal(), torch.full((32,), 100.0).double(), rtol=0.1)
    assert float((precision - precision.diagonal().diag()).abs().max()) < 20
    smooth = white.mean((2, 3), keepdim=True).expand_as(white) + 0.01 * white
    variance = torch.linalg.inv(spectrum_precision(smooth))
    # Pixels of a channel move together, and those of two channels do not.
    assert float(variance[0, 1] / variance[0, 0]) > 0.8
    assert abs(float(variance[0, 16] / variance[0, 0])) < 0.2


@pytest.mark.parametrize("share", [math.inf, 0.5])
def test_information_is_that_of_autograd(share: float, make_run: Make) -> None:
    run = make_run(IMAGES, **SMALL)
    simulate(run)
    cell = run.cells[0]
    key = cell.captures.keys()[0]
    task, batch = load_task(cell.captures.root), cell.truth.load(key)
    model = replay(cell.captures.load(key), task, torch.device("cpu"), torch.float64)
    images = batch.inputs.double()
    parts = model.gradient(Batch(images, batch.labels)).values()
    length = float(torch.cat([part.detach().flatten() for part in parts]).norm())

    def gradient(inputs: Tensor) -> Tensor:
        update = model.gradient(Batch(inputs, batch.labels))
        kept = update if share == math.inf else cut(update, share * length)
        return torch.cat([value.flatten() for value in kept.values()])

    # A few directions, by central differences.
    step = 1e-5
    pixels = torch.eye(images.numel(), dtype=torch.float64)[:5].view(-1, *images.shape)
    columns = [
        (gradient(images + step * d) - gradient(images - step * d)).detach() / (2 * step)
        for d in pixels
    ]
    expected = torch.stack(columns) @ torch.stack(columns).T
    found = information(
        replay(cell.captures.load(key), task, torch.device("cpu")),
        batch,
        math.inf if share == math.inf else share * length,
    )
    assert torch.allclose(found[:5, :5], expected, rtol=1e-3, atol=1e-6 * float(expected.max()))


def test_less_noise_raises_the_ceiling(make_run: Make) -> None:
    noises = [{"name": "gaussian_noise", "std": std} for std in (1e-3, 1e-1)]
    run = make_run(IMAGES, **SMALL, defenses=[*noises, {"name": "none"}])
    simulate(run)
    shared: dict[str, Tensor] = {}
    low, high, none = (ceilings(cell, 2, shared) for cell in run.cells)
    assert isinstance(low, Ceilings)
    assert isinstance(high, Ceilings)
    assert none == "the defense is not Gaussian noise alone"
    assert len(shared) == len(low.found) == 2  # the Jacobians are shared by both
    assert low.psnr > high.psnr + 5
    assert "20 auxiliary rows" in low.prior


def test_a_step_of_sgd_is_a_gradient_times_its_rate(make_run: Make) -> None:
    gradient = {"name": "gaussian_noise", "std": 1e-2}
    weights = {"name": "gaussian_noise", "std": 1e-4}
    changes = {"protocol": "fedavg", "client_rows": 1, "learning_rate": 1e-2}
    found = []
    for folder, protocol, noise in (("a", {}, gradient), ("b", changes, weights)):
        run = make_run(
            IMAGES,
            folder=folder,
            task=SMALL["task"],
            federation={**SMALL["federation"], **protocol},
            defenses=[noise],
        )
        simulate(run)
        found.append(ceilings(run.cells[0], 1))
    assert all(isinstance(one, Ceilings) for one in found)
    first, second = (one for one in found if isinstance(one, Ceilings))
    assert second.found[0].std == pytest.approx(first.found[0].std)


@pytest.mark.parametrize(
    ("federation", "reason"),
    [
        ({"batch_size": 2}, "a batch holds 2 examples instead of one"),
        ({"protocol": "fedavg", "optimizer": "adam"}, "an update of adam is not a gradient"),
        ({"clients": 2, "secure_aggregation": 2}, "the server sees the sum of 2 clients"),
    ],
)
def test_where_there_is_none_it_says_why(
    federation: dict[str, object], reason: str, make_run: Make
) -> None:
    noise = {"name": "gaussian_noise", "std": 0.1}
    run = make_run(IMAGES, federation=federation, defenses=[noise])
    assert obstacle(run.cells[0].config) == reason
