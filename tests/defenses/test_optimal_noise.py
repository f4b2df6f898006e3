"""Noise by what a coordinate tells."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from fedsim.defenses.base import Step
from fedsim.defenses.optimal_noise import OptimalNoise
from fedsim.errors import ConfigError
from fedsim.types import Batch, Tensors
from tests.defenses.cases import rng


def test_optimal_noise_is_as_large_as_a_coordinate_tells(
    step: Callable[[int], tuple[Step, Tensors]],
) -> None:
    one, gradient = step(1)

    def bias(inputs: Tensor) -> Tensor:
        loss = one.loss(one.model, Batch(inputs, one.batch.labels))
        (slope,) = torch.autograd.grad(
            loss, [one.model.get_parameter("fc.bias")], create_graph=True
        )
        return slope

    rows = torch.autograd.functional.jacobian(bias, one.batch.inputs)
    lengths = OptimalNoise(samples=400).lengths(gradient, one, rng())
    torch.testing.assert_close(lengths["fc.bias"], rows.flatten(1).norm(dim=1), rtol=0.15, atol=0)
    # Of two draws' difference, the noise alone: its mean square is 2 std^2.
    first, second = (OptimalNoise(std=0.3).on_step(gradient, one, rng(s)) for s in (1, 2))
    apart = torch.cat([(first[name] - second[name]).flatten() for name in gradient])
    assert float(apart.square().mean().sqrt()) == pytest.approx(0.3 * math.sqrt(2), rel=0.1)
    tokens = Batch(torch.tensor([[1]]), torch.zeros(1))
    with pytest.raises(ConfigError, match="Choose images"):
        OptimalNoise().on_step(gradient, Step(one.model, tokens, one.loss), rng())
