"""Flower's local differential privacy."""

import math
from typing import Any

import numpy as np
import pytest
from flwr.supercore.differential_privacy import compute_clip_model_update

from fedsim.accountant import Schedule
from fedsim.defenses import build_chain
from fedsim.defenses.local_dp import LocalDp
from fedsim.types import Tensors
from tests.defenses.cases import filtered, rng


@pytest.mark.parametrize("norm", [0.01, 100.0])
def test_local_dp_clips_as_flower_does(update: Tensors, norm: float) -> None:
    values = {name: update[name] for name in ("weight", "bias")}
    quiet = LocalDp(clipping_norm=norm, sensitivity=0.0, epsilon=1.0, delta=1e-5)
    sent = quiet.on_update(values, rng())
    trained = [value.numpy().copy() for value in values.values()]
    compute_clip_model_update(trained, [np.zeros_like(value) for value in trained], norm)
    for ours, theirs in zip(sent.values(), trained, strict=True):
        np.testing.assert_allclose(ours.numpy(), theirs, rtol=1e-5)


CLIPS = [(1, 1e-4, "1/20,000"), (10, 1, "1/20"), (1, 1, "1/2"), (1, 2, ""), (1, 0, "")]


@pytest.mark.parametrize(("clip", "size", "share"), CLIPS)
def test_a_sensitivity_that_fits_no_clip(clip: float, size: float, share: str) -> None:
    local = {"name": "local_dp", "epsilon": 10.0, "delta": 1e-5, "clipping_norm": clip}
    chain = build_chain(({"name": "sign"}, {**local, "sensitivity": size}), "defense")
    assert bool(chain.overclaims) == bool(share)
    assert share in chain.overclaims
    assert ("(add or remove one) and" in chain.overclaims) == bool(share)


def test_local_dp_has_flowers_noise_and_claims_no_epsilon_for_a_run(update: Tensors) -> None:
    options: dict[str, Any] = {"clipping_norm": 1.0, "epsilon": 0.5, "delta": 1e-5}
    noisy, quiet = (LocalDp(sensitivity=size, **options) for size in (2.0, 0.0))
    noise = filtered(noisy.on_update(update, rng())) - filtered(quiet.on_update(update, rng()))
    assert float(noise.std()) == pytest.approx(2.0 * math.sqrt(2 * math.log(1.25e5)) / 0.5, rel=0.1)
    assert noisy.unit is None
    assert noisy.epsilon_after(Schedule(1.0, 1, 1)) is None
