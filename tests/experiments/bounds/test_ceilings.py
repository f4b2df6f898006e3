"""Ceilings of PSNR against a linear model, where the best attack is known, and autograd."""

import math

import pytest
import torch
from torch import Tensor

from attacks.observed.replay import replay
from experiments.bounds.budgets import ExampleReply, bits_sent, own_captures
from experiments.bounds.limits import (
    InformationSpectrum,
    ceiling,
    information,
    spectrum_precision,
    unfold,
)
from experiments.bounds.noise import Noise, noise
from fedsim.defenses.encoding import Encoding
from fedsim.magnitudes import cut
from fedsim.tasks import load_task
from fedsim.types import Batch
from tests.apps.cases import IMAGES, Make, simulate

SMALL = {"task": {"image_size": 8}, "federation": {"rounds": 1, "clients": 2}}


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
    clip = math.inf if share == math.inf else share * length
    reply = ExampleReply(replay(cell.captures.load(key), task, torch.device("cpu")), clip)
    unfold(reply.model.network)
    found = information(reply, batch)
    assert torch.allclose(found[:5, :5], expected, rtol=1e-3, atol=1e-6 * float(expected.max()))


def test_an_image_drawn_from_the_prior_has_its_spectrum() -> None:
    rng = torch.Generator().manual_seed(2)
    rough = torch.randn(500, 1, 4, 4, generator=rng)
    smooth = 0.5 + 0.1 * (rough.mean((2, 3), keepdim=True) + 0.2 * rough)
    prior = InformationSpectrum.of(smooth)
    drawn = prior.draw(4000, rng)
    exact = torch.linalg.inv(prior.precision)
    assert torch.allclose(drawn.T.cov(), exact, atol=0.1 * float(exact.max()))
    assert float(prior.power.sum()) == pytest.approx(float(exact.trace()), rel=1e-6)


@pytest.mark.slow
def test_less_noise_raises_the_ceiling(make_run: Make) -> None:
    run = make_run(IMAGES, **SMALL)
    simulate(run)
    cell = run.cells[0]
    prior = InformationSpectrum.of(cell.captures.auxiliary().inputs)
    shared: dict[str, Tensor] = {}
    low, high, flat = (
        ceiling(cell, Noise(std, math.inf, 1, ""), prior, shared) for std in (1e-3, 1e-1, 1e4)
    )
    assert isinstance(low, float)
    assert isinstance(high, float)
    assert len(shared) == 1  # the Jacobians are shared
    assert low > high + 5
    blind = -10 * math.log10(float(prior.power.mean()))
    assert flat == pytest.approx(blind, abs=0.01)  # nothing is seen but the prior
    assert ceiling(cell, Noise(1.0, math.inf, 1, "a reason"), prior) == "a reason"


GAUSSIAN = {"name": "gaussian_noise", "std": 0.1}
CLIP = {"name": "clip", "norm": 2.0}


@pytest.mark.parametrize(
    ("chain", "federation", "std", "nats"),
    [
        ([GAUSSIAN], {"batch_size": 4}, 0.4, math.inf),
        ([{**GAUSSIAN, "stage": "sample"}], {"batch_size": 4}, 0.2, math.inf),
        ([CLIP, GAUSSIAN, {"name": "sign"}], {"batch_size": 1}, 0.1, 200.0),
        ([{"name": "dp_sgd", "clip": 2.0, "noise_multiplier": 0.5}], {"batch_size": 4}, 1.0, 2.0),
        (
            [{"name": "dp_client", "clip": 2.0, "noise_multiplier": 0.5}],
            {"batch_size": 4},
            4.0,
            2.0,
        ),
        (
            [{"name": "dp_sgd", "clip": 2.0, "noise_multiplier": 0.5}],
            {"protocol": "fedavg", "batch_size": 1, "client_rows": 0, "local_epochs": 3},
            1.0,
            6.0,  # an example is in a sum of each of three epochs
        ),
        ([GAUSSIAN], {"protocol": "fedavg", "batch_size": 1, "learning_rate": 0.5}, 0.2, math.inf),
    ],
)
def test_noise_on_the_scale_of_one_gradient(
    chain: list[dict[str, object]],
    federation: dict[str, object],
    std: float,
    nats: float,
    make_run: Make,
) -> None:
    run = make_run(IMAGES, federation=federation, defenses=[{"chain": chain}])
    declared = noise(run.cells[0].config, 8)
    assert declared is not None
    assert declared.std == pytest.approx(std)
    assert declared.clipped == pytest.approx(nats)


@pytest.mark.parametrize(
    ("chain", "federation", "reason"),
    [
        ([{"name": "prune", "fraction": 0.5}, GAUSSIAN], {}, None),
        ([{"name": "prune", "fraction": 0.5}], {}, None),
        ([CLIP, GAUSSIAN], {"batch_size": 2}, "clipping mixes the examples of a batch"),
        ([GAUSSIAN], {"protocol": "fedavg", "optimizer": "adam"}, "a reply is not one gradient"),
        ([GAUSSIAN], {"protocol": "fedavg", "local_steps": 2}, "a reply is not one gradient"),
    ],
)
def test_where_gradients_say_nothing(
    chain: list[dict[str, object]],
    federation: dict[str, object],
    reason: str | None,
    make_run: Make,
) -> None:
    run = make_run(IMAGES, federation=federation, defenses=[{"chain": chain}])
    declared = noise(run.cells[0].config, 8)
    assert (declared.single if declared else None) == reason


def test_bits_are_those_of_the_packed_reply(make_run: Make) -> None:
    run = make_run(IMAGES, **SMALL, defenses=[{"name": "sign"}])
    simulate(run)
    cell = run.cells[0]
    reply = cell.captures.load(own_captures(cell)[0]).received
    packed = Encoding(bits=1, zero=False, sparse=True)
    bits = sum(8 * packed.size(value) for value in reply.values())
    assert bits_sent(cell) >= bits * math.log(2)
    assert bits_sent(cell) < 1.2 * bits * math.log(2)
