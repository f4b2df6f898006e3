"""NVFlare's percentile filter."""

import numpy as np
import pytest
import torch

from fedsim.accountant import Schedule
from fedsim.defenses.percentile_privacy import PercentilePrivacy, SvtPrivacy, percentile
from fedsim.types import Tensors
from tests.defenses.cases import rng


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
