"""NVFlare's sparse vector filter."""

import math

import pytest
import torch

from fedsim.defenses.percentile_privacy import SvtPrivacy, laplace
from fedsim.types import Tensors
from tests.defenses.cases import filtered, rng


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
