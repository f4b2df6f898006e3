"""Distances against closed forms."""

import pytest
import torch
from torch.nn.functional import cosine_similarity

from attacks.observed.distance import cosine_distance, squared_error


def tensors(*values: list[float]) -> dict[str, torch.Tensor]:
    return {name: torch.tensor(value) for name, value in zip("abc", values, strict=False)}


def test_squared_error() -> None:
    assert squared_error(tensors([1, 2], [3]), tensors([0, 0], [1])) == 1 + 4 + 4


def test_cosine_is_one_product_over_all_tensors() -> None:
    a, b = torch.randn(2, 7, generator=torch.Generator().manual_seed(0))
    distance = cosine_distance({"x": a[:3], "y": a[3:]}, {"x": b[:3], "y": b[3:]})
    torch.testing.assert_close(distance, 1 - cosine_similarity(a, b, dim=0))
    torch.testing.assert_close(cosine_distance({"x": 5 * a}, {"x": a}), torch.tensor(0.0))
    torch.testing.assert_close(cosine_distance({"x": -a}, {"x": a}), torch.tensor(2.0))


def test_only_observed_names_count() -> None:
    guess, observed = tensors([3, 4], [9]), tensors([4, 3])
    assert squared_error(guess, observed) == 2
    assert cosine_distance(guess, observed).item() == pytest.approx(1 - 24 / 25)


def test_weights_restrict_to_coordinates() -> None:
    guess, observed = tensors([3, 4, 7], [1]), tensors([4, 3, -9], [3])
    weights = {"a": torch.tensor([1.0, 1.0, 0.0]), "b": torch.tensor(0.5)}
    assert squared_error(guess, observed, weights) == 1 + 1 + 0.5 * 4
    expected = 1 - (24 + 1.5) / ((25 + 0.5) ** 0.5 * (25 + 4.5) ** 0.5)
    assert cosine_distance(guess, observed, weights).item() == pytest.approx(expected)


def test_vanishing_gradient_has_a_finite_slope() -> None:
    guess = torch.zeros(3, requires_grad=True)
    distance = cosine_distance({"x": guess}, {"x": torch.tensor([1.0, 2.0, 3.0])})
    assert distance.item() == pytest.approx(1)
    (slope,) = torch.autograd.grad(distance, guess)
    assert slope.isfinite().all()


def test_near_vectors_are_told_apart() -> None:
    rng = torch.Generator().manual_seed(0)
    a, step = torch.randn(2, 1000, generator=rng)
    near = a + 1e-5 * step
    exact = 1 - cosine_similarity(a.double(), near.double(), dim=0).item()
    assert exact < 1e-9
    assert cosine_distance({"x": near}, {"x": a}).item() == pytest.approx(exact, rel=1e-2)
