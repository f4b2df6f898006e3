"""The size of the noise."""

import math

import pytest
import torch

from fedsim.defenses.gaussian_noise import GaussianNoise
from tests.defenses.cases import rng


def test_noise_has_the_standard_deviation_and_depends_on_the_generator_alone() -> None:
    given = {"w": torch.full((200, 200), 3.0), "b": torch.zeros(10_000)}
    first = GaussianNoise(std=0.25).on_update(given, rng(1))
    noise = torch.cat([(first[name] - given[name]).flatten() for name in given])
    assert noise.mean().item() == pytest.approx(0.0, abs=4 * 0.25 / math.sqrt(50_000))
    assert noise.std().item() == pytest.approx(0.25, rel=0.02)
    again = GaussianNoise(std=0.25).on_update(given, rng(1))
    other = GaussianNoise(std=0.25).on_update(given, rng(2))
    assert torch.equal(first["w"], again["w"])
    assert not torch.equal(first["w"], other["w"])
    assert GaussianNoise(std=0.25).surrogate(given) is given


def test_sample_noise_shrinks_with_the_root_of_the_batch() -> None:
    defense, source = GaussianNoise(std=0.5, stage="sample"), rng()
    zero = {"w": torch.zeros(20_000)}
    mean = torch.stack([defense.on_gradient(zero, source)["w"] for _ in range(4)]).mean(0)
    assert mean.std().item() == pytest.approx(0.25, rel=0.03)
