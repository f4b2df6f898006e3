"""Tensors in parts: pairs of values and places, and factors, as clients order them."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from fedsim.errors import ConfigError
from fedsim.tensor_names import named

Parts = list[Tensor]


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 3))


def tensors() -> Parts:
    rng = torch.Generator().manual_seed(0)
    dense = [torch.randn(value.shape, generator=rng) for value in network().parameters()]
    return [value * (value.abs() > 1) for value in dense]


def pair(value: Tensor) -> tuple[Tensor, Tensor]:
    places = value.flatten().nonzero()[:, 0]
    return value.flatten()[places], places.to(torch.int32)


def by_axes(value: Tensor) -> tuple[Tensor, Tensor]:
    sparse = value.to_sparse()
    return sparse.indices(), sparse.values()


def each(form: Callable[[Tensor], tuple[Tensor, Tensor]]) -> Parts:
    return [part for value in tensors() for part in form(value)]


FORMS: dict[str, Callable[[], Parts]] = {
    "values first": lambda: each(pair),
    "places first": lambda: each(lambda value: pair(value)[::-1]),
    "a place an axis": lambda: each(by_axes),
    "all values, then all places": lambda: each(pair)[::2] + each(pair)[1::2],
    "one pair": lambda: list(pair(torch.cat([value.flatten() for value in tensors()]))),
    "biases whole": lambda: [
        part for value in tensors() for part in (pair(value) if value.dim() > 1 else (value,))
    ],
}


@pytest.mark.parametrize("form", FORMS)
def test_pairs_are_put_at_their_places(form: str) -> None:
    found = named(FORMS[form](), network(), "gradients")
    assert "pairs of values and their places" in found.how
    for value, right in zip(found.tensors.values(), tensors(), strict=True):
        assert torch.equal(value, right)


def test_factors_are_multiplied() -> None:
    left, right = torch.randn(8, 2), torch.randn(12, 2)
    found = named([left, right, *tensors()[1:]], network(), "gradients")
    assert torch.equal(found.tensors["0.weight"], left @ right.T)


def test_pairs_are_no_weights() -> None:
    with pytest.raises(ConfigError, match="so they are no weights"):
        named(each(pair), network(), "after")


@pytest.mark.parametrize("places", [[0, 96], [-1, 3]])
def test_places_beyond_the_tensor_are_none(places: list[int]) -> None:
    with pytest.raises(ConfigError, match="has the shape"):
        named([torch.ones(2), torch.tensor(places), *tensors()[1:]], network(), "gradients")
