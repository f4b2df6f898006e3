"""What a reply shows of its defense: each of ten named, and none of clients without any."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

import fedsim
from benchmarks.attest.bench import DEFENSES
from benchmarks.attest.clients import reply
from benchmarks.attest.liars import changed, of
from experiments.attest.findings import Part
from experiments.attest.noise import at_most
from fedsim.types import Batch


@pytest.mark.some(28)
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("steps", [0, 1, 5])
@pytest.mark.parametrize("model", ["lenet", "mlp", "resnet20", "tiny-bert", "tiny-gpt2"])
def test_no_defense_is_seen_where_there_is_none(model: str, steps: int, optimizer: str) -> None:
    for client in range(1 if model.startswith("tiny") else 2):
        assert fedsim.attest(reply(model, client, steps=steps, optimizer=optimizer)).defenses == ()


def test_zeros_of_units_without_a_slope_are_no_pruning_in_steps_of_adam() -> None:
    victim = reply("resnet20", 4, steps=1, optimizer="adam")  # 5 % of its entries are zero
    assert fedsim.attest(victim)["sparsity"].state == "open"


@pytest.mark.parametrize(("model", "client"), [("lenet", 4), ("resnet20", 12)])
def test_a_step_of_adam_lies_on_no_grid_of_the_wire(model: str, client: int) -> None:
    """Its entries are whole multiples of the rate, and the weights have all their digits."""
    assert fedsim.attest(reply(model, client, steps=1, optimizer="adam")).defenses == ()


@pytest.mark.parametrize("count", [2, 16])
def test_zeros_of_rows_of_codes_are_no_pruning(count: int) -> None:
    rng = torch.Generator().manual_seed(0)
    net = nn.Sequential(nn.Linear(400, 64), nn.ReLU(), nn.Linear(64, 5))
    codes = (torch.rand(count, 400, generator=rng) < 0.02).float()
    value = _loss(net, Batch(codes, torch.arange(count) % 5))
    gradients = torch.autograd.grad(value, list(net.parameters()))
    victim = fedsim.Update.of(net, gradients=gradients, loss=_loss, input_shape=(400,))
    assert fedsim.attest(victim).defenses == ()


class Windows(nn.Module):
    """Weights that each step of a window takes: more directions than examples."""

    def __init__(self) -> None:
        super().__init__()
        self.each, self.lstm = nn.Linear(6, 24), nn.LSTM(24, 32, batch_first=True)
        self.head = nn.Linear(32, 5)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden, _ = self.lstm(self.each(inputs).tanh())
        return self.head(hidden[:, -1])  # type: ignore[no-any-return]


def test_what_steps_of_a_window_add_is_no_noise() -> None:
    torch.manual_seed(0)
    net = Windows()
    value = _loss(net, Batch(torch.rand(1, 20, 6), torch.tensor([3])))
    gradients = torch.autograd.grad(value, list(net.parameters()))
    known = {"loss": _loss, "input_shape": (20, 6), "num_examples": 1}
    victim = fedsim.Update.of(net, gradients=gradients, **known)
    assert fedsim.attest(victim).defenses == ()


def _loss(net: nn.Module, batch: Batch) -> torch.Tensor:
    return nn.functional.cross_entropy(net(batch.inputs), batch.labels)


@pytest.mark.some(2)
@pytest.mark.parametrize("name", DEFENSES)
def test_a_defense_is_named_by_what_it_does(name: str) -> None:
    options, parts = DEFENSES[name]
    assert set(fedsim.attest(reply("lenet", 3, {"name": name, **options})).defenses) == parts


def test_signs_are_no_noise() -> None:
    assert fedsim.attest(reply("lenet", 8, {"name": "sign"}, steps=5)).defenses == ("signs",)


@pytest.mark.some(2)
@pytest.mark.parametrize("model", ["lenet", "tiny-bert"])
def test_a_grid_is_read_from_weights_and_not_denied_where_their_digits_hide_it(model: str) -> None:
    table = {"name": "quantize", "kind": "int8"}
    grid = fedsim.attest(reply(model, 0, table, steps=5))["grid"]
    assert grid.text.startswith("rounded to a grid of 127 steps")
    coarse = changed(reply(model, 0), lambda _, value: value.bfloat16())
    assert fedsim.attest(coarse)["grid"].state == "open"


@pytest.mark.some(5)
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


def _pruned(value: torch.Tensor) -> torch.Tensor:
    return torch.where(value.abs() > value.abs().quantile(0.9), value, 0.0)


def _clamped(value: torch.Tensor) -> torch.Tensor:
    most = float(value.abs().quantile(0.9))
    return value.clamp(-most, most)


def _on_grid(value: torch.Tensor) -> torch.Tensor:
    step = value.abs().max() / 127
    return (value / step).round() * step


WIRES: dict[str, Any] = {
    "float32": lambda value: value,
    "bfloat16": lambda value: value.bfloat16(),
    "float16": lambda value: value.half(),
    "bfloat16 of large tensors, as float32": lambda value: (
        value.bfloat16().float() if value.numel() > 500 else value
    ),
    "int8, as float32": _on_grid,
}


@pytest.mark.some(9)
@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("model", ["lenet", "tiny-bert"])
@pytest.mark.parametrize("change", [_pruned, _clamped])
def test_what_digits_of_weights_hide_is_not_denied(model: str, wire: str, change: Any) -> None:
    victim = reply(model, 0, steps=5)
    sent = victim.observation.sent
    sends = changed(
        victim, lambda name, value: WIRES[wire](sent[name] - change(sent[name] - value))
    )
    shown = fedsim.attest(sends)
    part: Part = "sparsity" if change is _pruned else "cut"
    told = wire == "float32" and change is _pruned
    assert shown[part].state == ("present" if told else "open")
    assert not {"signs", "noise"} & set(shown.defenses)


CHANGES: dict[str, tuple[Part, Any]] = {
    "the last matrix is pruned": (
        "sparsity",
        lambda name, value: _pruned(value) if name == "fc.weight" else value,
    ),
    "half of the units are left out": (
        "sparsity",
        lambda _, value: value * (torch.arange(len(value)) % 2).view(-1, *[1] * (value.dim() - 1)),
    ),
    "pruned and rounded to a grid": ("sparsity", lambda _, value: _on_grid(_pruned(value))),
    "cut by tensor": ("cut", lambda _, value: _clamped(value)),
    "the last matrix is cut": (
        "cut",
        lambda name, value: _clamped(value) if name == "fc.weight" else value,
    ),
    "cut and rounded to a grid": ("cut", lambda _, value: _on_grid(_clamped(value))),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_defense_of_a_part_of_the_gradient_is_not_denied(name: str) -> None:
    part, change = CHANGES[name]
    shown = fedsim.attest(changed(reply("lenet", 0), change))
    assert shown[part].state == "open"
    assert "noise" not in shown.defenses


@pytest.mark.parametrize("model", ["lenet", "tiny-bert"])
def test_what_whole_digits_show_is_denied(model: str) -> None:
    shown = fedsim.attest(reply(model, 0))
    assert shown["sparsity"].state == shown["cut"].state == "absent"


@pytest.mark.parametrize("background", [0.0, 1.0])
def test_equal_pixels_are_no_cut_and_black_ones_no_pruning(background: float) -> None:
    torch.manual_seed(0)
    head = nn.Linear(64, 10)
    with torch.no_grad():
        head.weight *= 20  # the first layer has the largest entries
    net = nn.Sequential(nn.Flatten(), nn.Linear(784, 64), nn.Sigmoid(), head)
    picture = torch.full((1, 1, 28, 28), background)
    picture[:, :, 8:20, 8:20] = torch.rand(1, 1, 12, 12)
    value = _loss(net, Batch(picture, torch.tensor([3])))
    gradients = torch.autograd.grad(value, list(net.parameters()))
    victim = fedsim.Update.of(net, gradients=gradients, loss=_loss, image_shape=(1, 28, 28))
    assert fedsim.attest(victim).defenses == ()
