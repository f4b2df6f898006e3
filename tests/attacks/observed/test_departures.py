"""Twelve causes and four networks: a cause is named where it is one, and none for another."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import fedsim
from attacks.observed import departures
from attacks.observed.departures import departure
from experiments.captures.guess import Guess
from experiments.captures.update import Update
from fedsim.types import Batch, Tensors

SHAPE, RATE = (3, 8, 8), 0.1
Activation = Callable[[Tensor], Tensor]


class Net(nn.Module):
    """One or two hidden layers of a width, with dropout before the head."""

    def __init__(self, *widths: int, activation: Activation = F.relu) -> None:
        super().__init__()
        sizes = (192, *widths)
        layers = [nn.Linear(a, b) for a, b in zip(sizes, widths, strict=False)]
        self.layers, self.h = nn.ModuleList(layers), nn.Linear(widths[-1], 10)
        self.activation, self.dropout = activation, nn.Dropout(0.3)

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        for layer in self.layers:
            x = self.activation(layer(x))
        return self.h(self.dropout(x))  # type: ignore[no-any-return]


NETWORKS: dict[str, Callable[[], Net]] = {
    "narrow": lambda: Net(48),
    "tanh": lambda: Net(64, activation=torch.tanh),
    "square": lambda: Net(32, 32),
    "wide square": lambda: Net(64, 64),
}
CAUSES = {
    "plain": "",
    "rates by layer": "a factor of its own",
    "LARS": "a factor of its own",
    "Muon": "is orthogonalised",
    "Muon on the head": "is orthogonalised",
    "transposed": "is the transposed one",
    "mixed labels": "its labels are mixed, 70%",
    "smoothed labels": "labels are smoothed by 0.1",
    "dropout": "as under dropout, a mask of units",
    "masked entries": "as under pruning or the mask",
    "noise": "is noise of one size",
    "another loss": "",
}
SENTENCES = {words for words in CAUSES.values() if words}


def loss(network: Any, batch: Any) -> Tensor:
    return F.cross_entropy(network(batch.inputs), batch.labels)


def picture(seed: int) -> Tensor:
    coarse = torch.rand(1, 3, 4, 4, generator=torch.Generator().manual_seed(seed))
    return F.interpolate(coarse, size=8, mode="bicubic").clamp(0.01, 1)


def objective(cause: str, outputs: Tensor, label: Tensor) -> Tensor:
    if cause == "mixed labels":
        other = F.cross_entropy(outputs, (label + 3) % 10)
        return 0.7 * F.cross_entropy(outputs, label) + 0.3 * other
    if cause == "another loss":
        return F.multi_margin_loss(outputs, label)
    smoothing = 0.1 if cause == "smoothed labels" else 0.0
    return F.cross_entropy(outputs, label, label_smoothing=smoothing)


def step(cause: str, network: Net, image: Tensor, label: Tensor, seed: int) -> Tensors:
    """The weights after one step of a client."""
    torch.manual_seed(seed + 50)
    network = copy.deepcopy(network).train(cause == "dropout")
    before = {name: value.detach().clone() for name, value in network.named_parameters()}
    objective(cause, network(image), label).backward()
    parameters = dict(network.named_parameters())
    slopes = {k: v.grad.clone() for k, v in parameters.items() if v.grad is not None}
    rng = torch.Generator().manual_seed(seed)
    rates = dict.fromkeys(slopes, RATE)
    if cause == "rates by layer":
        rates = {name: RATE * (0.3 if name.startswith("h") else 1) for name in slopes}
    if cause == "LARS":
        rates = {name: RATE * float(before[name].norm() / v.norm()) for name, v in slopes.items()}
    if cause == "transposed":
        slopes = {
            name: v.T if v.dim() == 2 and v.shape[0] == v.shape[1] else v
            for name, v in slopes.items()
        }
    if cause == "masked entries":
        kept = torch.rand(slopes["h.weight"].shape, generator=rng) < 0.5
        slopes["h.weight"] = slopes["h.weight"] * kept
    after = {name: before[name] - rates[name] * slopes[name] for name in slopes}
    if cause == "noise":
        return {k: v + 5e-5 * torch.randn(v.shape, generator=rng) for k, v in after.items()}
    if cause.startswith("Muon"):
        chosen = {
            name: value
            for name, value in parameters.items()
            if value.dim() == 2 and ("head" not in cause or name == "h.weight")
        }
        torch.optim.Muon(
            list(chosen.values()), lr=0.02, weight_decay=0.0, momentum=0.0, nesterov=False
        ).step()
        after |= {name: value.detach() for name, value in chosen.items()}
    return after


def victim(cause: str, name: str, seed: int) -> tuple[Update, Tensor, Tensor]:
    torch.manual_seed(seed)
    network = NETWORKS[name]().eval()
    image, label = picture(seed), torch.tensor([2 * seed % 10])
    update = fedsim.Update.of(
        network,
        before=network.state_dict(),
        after=step(cause, network, image, label, seed),
        loss=loss,
        image_shape=SHAPE,
        input_range=(0, 1),
        num_examples=1,
    )
    return update, image, label


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("cause", CAUSES)
def test_a_cause_is_named_or_none(cause: str, name: str) -> None:
    """Of 48 pairs of 3 clients each, no client's cause is called another."""
    named = 0
    for seed in range(3):
        update, image, _ = victim(cause, name, seed)
        guess: Guess = fedsim.attack(update, "closed_form", quiet=True)
        said = [words for words in SENTENCES if words in guess.note]
        right = CAUSES[cause]
        if cause == "transposed" and "square" not in name:
            right = ""
        assert said in ([], [right])
        assert any(guess.certified) == (not right and cause != "another loss")
        if right and guess.images is not None:
            error = (torch.as_tensor(guess.images[0]) - image[0]).square().mean()
            assert said == [] or error < 0.01
        named += said == [right]
    # What noise leaves is estimated anew, and that guess does not always pass the test.
    assert named >= 2 or cause == "noise" or not right


@pytest.mark.slow
@pytest.mark.parametrize("scale", [0.5, 2])
@pytest.mark.parametrize("constant", ["_ALIKE", "_OTHER", "_CROSSED", "_LIT", "_SPREAD"])
def test_half_and_double_of_each_threshold_call_no_cause_another(
    constant: str, scale: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    value = getattr(departures, constant)
    value = 1 + scale * (value - 1) if constant == "_SPREAD" else scale * value
    monkeypatch.setattr(departures, constant, value)
    for cause, right in CAUSES.items():
        update, image, label = victim(cause, "wide square", 1)
        said = departure(update.observation, update.task, Batch(image, label))
        assert not said or (right and right in said)
