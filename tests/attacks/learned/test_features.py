"""Features of updates: oracles of per-sample gradients, hashing and the last layer's factors."""

from collections.abc import Callable

import pytest
import torch

from attacks.learned.features import (
    Coordinates,
    Hashed,
    Slopes,
    draw_bins,
    head_input,
    tensor_weights,
)
from attacks.learned.simulated_client import group_gradients
from attacks.observed.labels import find_head
from attacks.observed.replay import Replay, replay
from fedsim.store.capture import Observation
from fedsim.tasks.base import Task
from fedsim.types import Batch
from tests.attacks.learned.cases import rng

Victim = Callable[..., tuple[Task, Observation]]
Pictures = Callable[..., Batch]
CPU = torch.device("cpu")


@pytest.fixture
def batch(pictures: Pictures) -> Batch:
    return pictures(6, 3, 5, 0, 3, 9, 1)


@pytest.fixture
def model(victim: Victim, batch: Batch) -> Replay:
    task, seen = victim(batch)
    return replay(seen, task, CPU)


def test_coordinates_come_back(model: Replay, batch: Batch) -> None:
    coordinates = Coordinates.of(model)
    gradients = group_gradients(model, batch, 1)
    flat = coordinates.flatten(gradients)
    assert flat.shape == (6, coordinates.count)
    assert coordinates.count == sum(p.numel() for p in model.parameters.values())
    again = coordinates.unflatten(flat)
    assert all(torch.equal(again[name], value) for name, value in gradients.items())
    first = coordinates.flatten({name: value[0] for name, value in gradients.items()})
    assert torch.equal(first, flat[0])


PARTS = Coordinates({"a": torch.Size([2, 5]), "b": torch.Size([20])})


def test_hashing_adds_up_bins() -> None:
    index = draw_bins(30, 0.3, rng())
    features = Hashed.of(PARTS, index)
    matrix = torch.zeros(features.width, 30)
    matrix[index, torch.arange(30)] = 1
    values = torch.randn(7, 30, generator=rng())
    update = PARTS.unflatten(values)
    torch.testing.assert_close(features.linear(update), values @ matrix.T)
    assert features.sizes(CPU).tolist() == matrix.sum(1).tolist()
    assert features.width <= 9
    assert int(matrix.sum(1).min()) >= 1
    assert torch.equal(index, draw_bins(30, 0.3, rng()))
    assert not torch.equal(index, draw_bins(30, 0.3, rng(1)))
    plain = Hashed.of(PARTS, None)
    assert torch.equal(plain.finish(plain.linear(update)), values)
    assert (plain.width, plain.sizes(CPU).tolist()) == (30, [1.0] * 30)


def test_weighted_bins_keep_the_variance_of_noise() -> None:
    parts = Coordinates({"a": torch.Size([1000]), "b": torch.Size([30, 100])})
    index, weights = draw_bins(4000, 0.01, rng()), torch.tensor([0.5, 2.0])
    features = Hashed.of(parts, index, weights)
    noise = parts.unflatten(0.3 * torch.randn(500, 4000, generator=rng(2)))
    found = features.linear(noise)
    weighted = {"a": 0.5 * noise["a"], "b": 2 * noise["b"]}
    torch.testing.assert_close(found, Hashed.of(parts, index).linear(weighted))
    expected = 0.09 * features.sizes(CPU)
    assert float((found.var(0) / expected).mean()) == pytest.approx(1, abs=0.05)


def test_weights_bring_tensors_to_one_scale_unless_noise_hides_them() -> None:
    coordinates = Coordinates({"a": torch.Size([3, 4]), "b": torch.Size([5]), "c": torch.Size([2])})
    scales = torch.tensor([10.0] * 12 + [0.1] * 5 + [0.0] * 2)
    updates = torch.randn(4000, 19, generator=rng()) * scales
    plain = tensor_weights(updates, coordinates, 0.0)
    torch.testing.assert_close(plain, torch.tensor([0.1, 10.0, 0.0]), rtol=0.05, atol=0)
    hidden = tensor_weights(updates, coordinates, 1.0)
    torch.testing.assert_close(hidden, torch.tensor([0.099, 0.099, 0.0]), rtol=0.05, atol=0)


def test_slopes(model: Replay, batch: Batch) -> None:
    reference = torch.full((3, 16, 16), 0.4)
    features = Slopes(model, Coordinates.of(model), find_head(model.network), reference)
    flat = features.linear(group_gradients(model, batch, 1))
    found = features.finish(flat)
    assert found.shape == (6, features.width)
    slopes, bias, given, known = found.split([768, 10, 192, 10], 1)
    assert torch.equal(bias, flat[:, -10:])
    assert known.argmax(1).tolist() == batch.labels.tolist()
    body = model.network.get_submodule("body")
    torch.testing.assert_close(given, body(batch.inputs), rtol=1e-3, atol=1e-4)
    for i in range(6):  # by autograd, whereas the attack has it from torch.func
        image = reference.clone().requires_grad_()
        gradient = model.gradient(Batch(image[None], batch.labels[i : i + 1]))
        inner = (features.coordinates.flatten(gradient) * flat[i]).sum()
        (expected,) = torch.autograd.grad(inner, image)
        torch.testing.assert_close(slopes[i], expected.flatten(), rtol=1e-3, atol=1e-5)


def test_an_input_that_left_no_trace_is_zero() -> None:
    weight, bias = torch.randn(2, 3, 4, generator=rng()), torch.zeros(2, 3)
    assert head_input(weight, bias).tolist() == torch.zeros(2, 4).tolist()
