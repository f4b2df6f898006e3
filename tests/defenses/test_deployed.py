"""Filters of other frameworks, held to their published formulas and to the real ones at hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from flwr.supercore.differential_privacy import compute_clip_model_update
from torch import Tensor

from fedsim.accountant import Schedule
from fedsim.defenses.local_dp import LocalDp
from fedsim.defenses.percentile_privacy import PercentilePrivacy, percentile
from fedsim.defenses.svt_privacy import SvtPrivacy, laplace
from fedsim.types import Tensors


def rng() -> torch.Generator:
    return torch.Generator().manual_seed(0)


@pytest.fixture
def update() -> Tensors:
    drawn = torch.Generator().manual_seed(1)
    return {
        "weight": 0.01 * torch.randn(40, 50, generator=drawn),
        "bias": 0.01 * torch.randn(50, generator=drawn),
        "temperature": torch.tensor(3.0),
        "seen": torch.tensor([7]),
    }


def filtered(update: Tensors) -> Tensor:
    """The coordinates that NVFlare's filters change, ``(coordinate,)``."""
    return torch.cat([update["weight"].flatten(), update["bias"]])


@pytest.mark.parametrize("steps", [1, 4])
@pytest.mark.parametrize("rank", [0.0, 10.0, 37.5, 100.0])
def test_percentile_privacy_is_the_published_filter(
    update: Tensors, rank: float, steps: int
) -> None:
    sent = PercentilePrivacy(percentile=rank, gamma=0.012, steps=steps).on_update(update, rng())
    shares = {name: update[name].numpy() / steps for name in ("weight", "bias", "temperature")}
    cutoff = np.percentile(np.concatenate([np.abs(v).ravel() for v in shares.values()]), rank)
    for name in ("weight", "bias"):
        share = shares[name]
        kept = np.where((share > -cutoff) & (share < cutoff), 0, share).clip(-0.012, 0.012)
        np.testing.assert_allclose(sent[name].numpy(), kept * steps, rtol=1e-6)
    assert sent["temperature"] == 3.0
    assert torch.equal(sent["seen"], torch.tensor([7]))


def test_steps_are_those_of_a_round_unless_given() -> None:
    schedule = Schedule(rate=0.5, steps=12, rounds=3)
    assert PercentilePrivacy().fit(schedule).steps == 4
    assert PercentilePrivacy(steps=1).fit(schedule).steps == 1
    assert SvtPrivacy().fit(schedule).steps == 4


@pytest.mark.parametrize("size", [1, 2, 1001])
def test_percentiles_are_numpys(size: int) -> None:
    values = torch.rand(size, generator=rng())
    for rank in (0.0, 3.3, 50.0, 99.9, 100.0):
        assert float(percentile(values, rank)) == pytest.approx(np.percentile(values, rank))


def test_percentile_privacy_has_a_slope_where_it_sends_the_value_itself() -> None:
    value = torch.tensor([0.001, 0.005, 0.5], requires_grad=True)
    PercentilePrivacy(percentile=40, gamma=0.01).surrogate({"w": value})["w"].sum().backward()
    assert value.grad is not None
    assert value.grad.tolist() == [0.0, 1.0, 0.0]


@pytest.mark.parametrize("replace", [True, False])
def test_svt_privacy_with_a_large_budget_sends_what_exceeds_the_threshold(
    update: Tensors, replace: bool
) -> None:
    loud = SvtPrivacy(epsilon=1e12, noise_var=1e9, gamma=0.05, tau=0.01, replace=replace)
    sent, whole = filtered(loud.on_update(update, rng())), filtered(update)
    chosen, count = sent != 0, math.ceil(0.1 * len(whole))
    assert bool((whole[chosen].abs() >= 0.01 - 1e-6).all())
    assert torch.allclose(sent[chosen], whole[chosen])
    assert (int(chosen.sum()) == count) is not replace
    assert int(chosen.sum()) <= count


def test_svt_privacy_by_default_covers_every_value_with_noise(update: Tensors) -> None:
    sent = filtered(SvtPrivacy().on_update(update, rng()))
    values = sent[sent != 0]
    # Laplace noise of scale b has the mean magnitude b; the values are at most a twentieth of it.
    assert float(values.abs().mean()) == pytest.approx(2e-4, rel=0.25)
    assert len(values) <= math.ceil(0.1 * len(sent))


def test_laplace_noise_has_the_scale_that_is_asked_for() -> None:
    drawn = laplace((20_000,), 2.0, rng())
    assert float(drawn.mean()) == pytest.approx(0.0, abs=0.1)
    assert float(drawn.std()) == pytest.approx(2.0 * math.sqrt(2), rel=0.05)


@pytest.mark.parametrize("norm", [0.01, 100.0])
def test_local_dp_clips_as_flower_does(update: Tensors, norm: float) -> None:
    values = {name: update[name] for name in ("weight", "bias")}
    quiet = LocalDp(clipping_norm=norm, sensitivity=0.0, epsilon=1.0, delta=1e-5)
    sent = quiet.on_update(values, rng())
    trained = [value.numpy().copy() for value in values.values()]
    compute_clip_model_update(trained, [np.zeros_like(value) for value in trained], norm)
    for ours, theirs in zip(sent.values(), trained, strict=True):
        np.testing.assert_allclose(ours.numpy(), theirs, rtol=1e-5)


def test_local_dp_has_flowers_noise_and_claims_no_epsilon_for_a_run(update: Tensors) -> None:
    options: dict[str, Any] = {"clipping_norm": 1.0, "epsilon": 0.5, "delta": 1e-5}
    noisy, quiet = (LocalDp(sensitivity=size, **options) for size in (2.0, 0.0))
    noise = filtered(noisy.on_update(update, rng())) - filtered(quiet.on_update(update, rng()))
    assert float(noise.std()) == pytest.approx(2.0 * math.sqrt(2 * math.log(1.25e5)) / 0.5, rel=0.1)
    assert noisy.unit is None
    assert noisy.epsilon_after(Schedule(1.0, 1, 1)) is None
