"""Absolute values, products with weights and packed vectors are read; else one line says what."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import fedsim
from experiments.captures.guess import Guess
from experiments.captures.update import Update
from fedsim.errors import ConfigError
from fedsim.types import Tensors
from tests.experiments.captures.conftest import loss

SHAPE = (3, 8, 8)


def net() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Flatten(), nn.Linear(192, 48), nn.ReLU(), nn.Linear(48, 10))


def picture() -> Tensor:
    coarse = torch.rand(1, 3, 4, 4, generator=torch.Generator().manual_seed(5))
    return F.interpolate(coarse, size=8, mode="bicubic").clamp(0.01, 1)


def slopes(model: nn.Module) -> Tensors:
    value = F.cross_entropy(model(picture()), torch.tensor([7]))
    names = [name for name, _ in model.named_parameters()]
    return dict(zip(names, torch.autograd.grad(value, list(model.parameters())), strict=True))


def update(model: nn.Module, **given: Any) -> Update:
    facts: dict[str, Any] = {"loss": loss, "image_shape": SHAPE, "num_examples": 1}
    return fedsim.Update.of(model, **given, **facts)  # type: ignore[no-any-return]


FORMS: dict[str, Any] = {
    "read as |g|;": lambda slope, weight: slope.abs(),
    "read as |g w|": lambda slope, weight: (slope * weight).abs(),
    "read as g^2": lambda slope, weight: slope.square(),
    "read as (g w)^2": lambda slope, weight: (slope * weight).square(),
}


def scored(form: Any) -> Tensors:
    model = net()
    weights = dict(model.named_parameters())
    return {name: form(value, weights[name]).detach() for name, value in slopes(model).items()}


@pytest.mark.parametrize("said", FORMS)
def test_scores_show_the_picture(said: str) -> None:
    victim = update(net(), gradients=scored(FORMS[said]))
    assert "unsigned" in victim.reading.codes
    assert said in victim.doubt
    guess: Guess = fedsim.attack(victim, "closed_form", quiet=True)
    assert guess.certified == (False,)
    assert fedsim.score(guess, truth=picture()).mean("psnr") > 60
    assert not [words for words in ("next to nothing", "as under", "as by") if words in guess.note]


def test_products_with_their_signs_are_the_gradient() -> None:
    victim = update(net(), gradients=scored(lambda slope, weight: slope * weight))
    assert "products" in victim.reading.codes
    guess: Guess = fedsim.attack(victim, "closed_form", quiet=True)
    assert guess.certified == (True,)
    assert fedsim.score(guess, truth=picture()).mean("psnr") > 60


def test_scores_come_under_the_names_of_layers() -> None:
    model = net()
    scores = {
        name.removesuffix(".weight"): value.abs()
        for name, value in slopes(model).items()
        if name.endswith("weight")
    }
    victim = update(model, gradients=scores)
    assert list(victim.observation.received) == ["1.weight", "3.weight"]
    assert "unsigned" in victim.reading.codes


def test_a_gradient_is_no_score() -> None:
    assert not update(net(), gradients=slopes(net())).doubt


@pytest.mark.parametrize("size", [1e-3, 1.0])
def test_noise_is_no_product(size: float) -> None:
    rng = torch.Generator().manual_seed(3)
    noisy = {k: v + size * torch.randn(v.shape, generator=rng) for k, v in slopes(net()).items()}
    victim = update(net(), gradients=noisy)
    assert "products" not in victim.reading.codes
    assert torch.equal(victim.observation.received["1.weight"], noisy["1.weight"])


def at_random(value: Any) -> Any:
    return torch.rand(value.shape, generator=torch.Generator().manual_seed(2)) < 0.5


def two_of_four(value: Any) -> Any:
    groups = value.abs().unflatten(-1, (-1, 2 if value.shape[-1] % 4 else 4))
    return (groups >= groups.median(-1, keepdim=True).values).flatten(-2)


def masked(mask: Any = at_random) -> tuple[nn.Module, Tensors, dict[str, Tensor]]:
    """A sparse model, its weights after one masked step, and the masks."""
    model = net()
    masks = {
        name: mask(value.detach()) for name, value in model.named_parameters() if value.dim() > 1
    }
    with torch.no_grad():
        for name, value in model.named_parameters():
            value.mul_(masks.get(name, 1))
    after = {
        name: value.detach() - 0.1 * slopes(model)[name] * masks.get(name, 1)
        for name, value in model.named_parameters()
    }
    return model, after, masks


MASKS = [
    at_random,
    two_of_four,
    lambda weights: weights.abs() > weights.abs().median(),
    lambda weights: at_random(weights) | (torch.arange(weights.shape[1]) % 3 == 0),
]


@pytest.mark.parametrize("mask", MASKS)
def test_packed_weights_are_unpacked_and_the_mask_is_named(mask: Any) -> None:
    model, after, masks = masked(mask)
    before = model.state_dict()

    def packed(state: Tensors) -> Tensors:
        return {k: v[masks[k]] if k in masks else v for k, v in state.items()}

    plain = update(model, before=before, after=after, lr=0.1)
    victim = update(model, before=packed(before), after=packed(after), lr=0.1)
    for name, value in plain.observation.received.items():
        assert torch.equal(victim.observation.received[name], value)
    guess: Guess = fedsim.attack(victim, "closed_form", quiet=True)
    assert "the mask of" in guess.note
    assert guess.objective is not None
    assert guess.objective < 1e-4  # what was left out is no evidence
    assert fedsim.score(guess, truth=picture()).mean("psnr") > 90


def test_units_whose_bias_was_left_out_show_their_inputs() -> None:
    """Of a first layer's entries a quarter, biases too: alone these show a part of the pixels."""
    model, rng = net(), torch.Generator().manual_seed(1)
    kept = {
        name: value * (torch.rand(value.shape, generator=rng) < (0.25 if name[0] == "1" else 1))
        for name, value in slopes(model).items()
    }
    victim = update(model, gradients=kept)
    guess: Guess = fedsim.attack(victim, "closed_form", quiet=True)
    assert "the mask of" in guess.note
    assert fedsim.score(guess, truth=picture()).mean("psnr") > 60


@pytest.mark.parametrize(("share", "exact"), [(0.25, 192), (0.1, 166)])
def test_entries_that_a_mask_left_show_their_pixels(share: float, exact: int) -> None:
    """Of weights and biases of all layers: the class by the entries of the head, too."""
    model, rng = net(), torch.Generator().manual_seed(2)
    kept = {
        name: value * (torch.rand(value.shape, generator=rng) < share)
        for name, value in slopes(model).items()
    }
    guess: Guess = fedsim.attack(update(model, gradients=kept), "closed_form", quiet=True)
    assert guess.images is not None
    near = (torch.as_tensor(guess.images[0]) - picture()[0]).abs() < 1e-5
    assert int(near.sum()) >= exact
    assert ("the mask of" if exact == 192 else f"{exact} of 192 values are exact") in guess.note


def test_a_vector_of_another_mask_is_named() -> None:
    _, after, masks = masked()
    few = {name: value[masks[name]] if name in masks else value for name, value in after.items()}
    with pytest.raises(ConfigError, match="packed by a"):
        update(net(), before=few, after=few)
