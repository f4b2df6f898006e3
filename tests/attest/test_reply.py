"""What a reply shows of its defense: each of ten named, and none of clients without any."""

from dataclasses import replace

import pytest
import torch
from torch import nn

import fedsim
from benchmarks.attest.bench import DEFENSES
from benchmarks.attest.clients import reply
from benchmarks.attest.liars import changed, of
from experiments.attest.noise import at_most
from fedsim.types import Batch


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("steps", [0, 1, 5])
@pytest.mark.parametrize("model", ["lenet", "mlp", "resnet20", "tiny-bert", "tiny-gpt2"])
def test_no_defense_is_seen_where_there_is_none(model: str, steps: int, optimizer: str) -> None:
    for client in range(1 if model.startswith("tiny") else 2):
        assert fedsim.attest(reply(model, client, steps=steps, optimizer=optimizer)).defenses == ()


def test_zeros_of_units_without_a_slope_are_no_pruning_in_steps_of_adam() -> None:
    victim = reply("resnet20", 4, steps=1, optimizer="adam")  # 5 % of its entries are zero
    assert fedsim.attest(victim)["sparsity"].state == "open"


@pytest.mark.parametrize("count", [2, 16])
def test_zeros_of_rows_of_codes_are_no_pruning(count: int) -> None:
    rng = torch.Generator().manual_seed(0)
    net = nn.Sequential(nn.Linear(400, 64), nn.ReLU(), nn.Linear(64, 5))
    codes = (torch.rand(count, 400, generator=rng) < 0.02).float()
    value = _loss(net, Batch(codes, torch.arange(count) % 5))
    gradients = torch.autograd.grad(value, list(net.parameters()))
    victim = fedsim.Update.of(net, gradients=gradients, loss=_loss, input_shape=(400,))
    assert fedsim.attest(victim).defenses == ()


def _loss(net: nn.Module, batch: Batch) -> torch.Tensor:
    return nn.functional.cross_entropy(net(batch.inputs), batch.labels)


@pytest.mark.parametrize("name", DEFENSES)
def test_a_defense_is_named_by_what_it_does(name: str) -> None:
    options, parts = DEFENSES[name]
    assert set(fedsim.attest(reply("lenet", 3, {"name": name, **options})).defenses) == parts


def test_signs_are_no_noise() -> None:
    assert fedsim.attest(reply("lenet", 8, {"name": "sign"}, steps=5)).defenses == ("signs",)


@pytest.mark.parametrize("model", ["lenet", "tiny-bert"])
def test_a_grid_is_read_from_weights_and_not_denied_where_their_digits_hide_it(model: str) -> None:
    table = {"name": "quantize", "kind": "int8"}
    grid = fedsim.attest(reply(model, 0, table, steps=5))["grid"]
    assert grid.text.startswith("rounded to a grid of 127 steps")
    coarse = changed(reply(model, 0), lambda _, value: value.bfloat16())
    assert fedsim.attest(coarse)["grid"].state == "open"


@pytest.mark.parametrize("model", ["lenet", "tiny-bert", "tiny-gpt2"])
@pytest.mark.parametrize("std", [1e-4, 0.3])
def test_the_size_of_noise_is_read_within_5_percent(model: str, std: float) -> None:
    noise = fedsim.attest(reply(model, 4, {"name": "gaussian_noise", "std": std}))["noise"]
    assert noise.value == pytest.approx(std, rel=0.05)
    assert noise.low is not None
    assert noise.high is not None
    assert noise.low < std < noise.high


def test_the_most_noise_holds_whatever_lies_under_it() -> None:
    rng = torch.Generator().manual_seed(0)
    for draw in range(50):
        signal = torch.randn(500, generator=rng).pow(3) * 10 ** (draw % 5 - 2)
        noisy = signal + 0.1 * torch.randn(500, generator=rng)
        assert at_most(noisy.double()) >= 0.1
    assert at_most(0.1 * torch.randn(100_000, generator=rng).double()) < 0.103
    assert at_most(torch.zeros(10).double()) == 0


def test_what_is_not_finite_tells_nothing() -> None:
    victim = reply("lenet", 6)
    victim.observation.received["fc.bias"][0] = torch.nan
    shown = fedsim.attest(victim)
    assert {each.state for each in shown.findings} == {"open"}
    assert "NaN" in str(shown)


@pytest.mark.parametrize("optimizer", ["sgd", "momentum"])
def test_momentum_is_told_where_sgd_cannot_move_the_biases_so_far(optimizer: str) -> None:
    victim = reply("lenet", 0, optimizer=optimizer, steps=5)
    known = victim.observation.knowledge.model_copy(update={"optimizer": None})
    told = fedsim.attest(of(victim, replace(victim.observation, knowledge=known)))["optimizer"]
    assert told.state == ("open" if optimizer == "sgd" else "present")
