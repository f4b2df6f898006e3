"""Weight decay, penalties and smoothed labels that the client alone has: taken out, or named."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import fedsim
from attacks.observed import smoothed_labels, weight_decay
from experiments.captures.guess import Guess
from experiments.captures.update import Update
from fedsim.types import Batch

RATE, SHAPE = 0.1, (1, 10, 10)


def loss(network: Any, batch: Any) -> Tensor:
    return F.cross_entropy(network(batch.inputs), batch.labels)


def penalised(network: Any, batch: Any) -> Tensor:
    squares = [value.square().sum() for value in network.parameters()]
    return loss(network, batch) + 0.01 * torch.stack(squares).sum()


def smoothed(network: Any, batch: Any) -> Tensor:
    return F.cross_entropy(network(batch.inputs), batch.labels, label_smoothing=0.1)


def net() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Flatten(), nn.Linear(100, 60), nn.ReLU(), nn.Linear(60, 5))


def sgd(decay: float) -> Callable[[nn.Module], torch.optim.Optimizer]:
    return lambda part: torch.optim.SGD(part.parameters(), RATE, weight_decay=decay)


PLAIN = sgd(0.0)


def sparing_biases(part: nn.Module) -> torch.optim.Optimizer:
    matrices = [value for value in part.parameters() if value.dim() > 1]
    vectors = [value for value in part.parameters() if value.dim() == 1]
    groups: list[dict[str, Any]] = [{"params": matrices, "weight_decay": 5e-3}, {"params": vectors}]
    return torch.optim.SGD(groups, RATE)


def trained(
    optimizer: Callable[[nn.Module], torch.optim.Optimizer] = PLAIN,
    client: Any = loss,
    told: Any = loss,
    count: int = 2,
) -> Update:
    model = net()
    after = copy.deepcopy(model)
    steps = optimizer(after)
    client(after, Batch(images(count), torch.arange(count))).backward()
    steps.step()
    return fedsim.Update.of(  # type: ignore[no-any-return]
        model,
        before=model.state_dict(),
        after=after.state_dict(),
        loss=told,
        image_shape=SHAPE,
        num_examples=count,
    )


def images(count: int) -> Tensor:
    return torch.rand(count, *SHAPE, generator=torch.Generator().manual_seed(0))


def attacked(victim: Update) -> Guess:
    return fedsim.attack(victim, "spear", quiet=True, samples=4096)  # type: ignore[no-any-return]


def gradient_of(client: Any, count: int) -> Update:
    model = net()
    value = client(model, Batch(images(count), torch.arange(count)))
    gradients = torch.autograd.grad(value, list(model.parameters()))
    facts: dict[str, Any] = {"image_shape": SHAPE, "num_examples": count}
    return fedsim.Update.of(model, gradients=gradients, loss=loss, **facts)  # type: ignore[no-any-return]


@pytest.mark.some(5)
@pytest.mark.parametrize("scale", [0.5, 1, 2])
@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize(
    ("optimizer", "client", "share", "what"),
    [
        (sgd(5e-4), loss, 5e-5, "parameters"),
        (sgd(1e-2), loss, 1e-3, "parameters"),
        (sparing_biases, loss, 5e-4, "weights"),
        (PLAIN, penalised, 2e-3, "parameters"),
    ],
)
def test_decay_is_taken_out_and_the_images_are_certified(
    optimizer: Any,
    client: Any,
    share: float,
    what: str,
    count: int,
    scale: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(weight_decay, "_APART", scale * weight_decay._APART)
    victim = trained(optimizer, client, count=count)
    assert f"it held {share:.3g} times the {what} that were sent" in victim.match
    guess = attacked(victim)
    assert guess.certified == (True,) * count
    assert fedsim.score(guess, truth=images(count)).mean("psnr") > 80


@pytest.mark.some(3)
@pytest.mark.parametrize("scale", [0.5, 1, 2])
def test_nothing_is_taken_out_where_nothing_is(
    scale: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weight_decay, "_APART", scale * weight_decay._APART)
    for victim in (trained(), gradient_of(loss, 2), gradient_of(smoothed, 2)):
        assert "it held" not in victim.match


@pytest.mark.slow
def test_a_penalty_of_the_loss_is_named() -> None:
    for client in (loss, penalised):
        guess = attacked(trained(client=client, told=penalised))
        assert not any(guess.certified)
        assert "its loss holds a penalty on the weights; pass it without" in guess.note


@pytest.mark.some(10)
@pytest.mark.parametrize("scale", [0.5, 1, 2])
@pytest.mark.parametrize("count", [1, 2])
def test_smoothed_labels_are_named(
    count: int, scale: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(smoothed_labels, "_UNEXPLAINED", scale * smoothed_labels._UNEXPLAINED)
    for victim in (gradient_of(smoothed, count), trained(client=smoothed, count=count)):
        guess = attacked(victim)
        assert "the client's labels are smoothed by 0.1" in guess.note
        again = attacked(trained(client=smoothed, told=smoothed, count=count))
        assert (again.certified, "smoothed" in again.note) == ((True,) * count, False)
    hinge = attacked(gradient_of(lambda *pair: loss(*pair) ** 2, count))
    assert "smoothed" not in hinge.note


def test_closed_form_keeps_the_image_under_smoothed_labels() -> None:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Conv2d(1, 6, 3, 2, 1), nn.Sigmoid(), nn.Flatten(), nn.Linear(150, 5))
    value = smoothed(model, Batch(images(1), torch.tensor([3])))
    victim = fedsim.Update.of(
        model,
        gradients=torch.autograd.grad(value, list(model.parameters())),
        loss=loss,
        image_shape=SHAPE,
        num_examples=1,
    )
    guess = fedsim.attack(victim, "closed_form", quiet=True)
    assert (guess.certified, guess.labels) == ((False,), (3,))
    assert guess.note.count("smoothed by 0.1") == 1
    assert fedsim.score(guess, truth=images(1)).mean("psnr") > 60


@pytest.mark.some(5)
@pytest.mark.parametrize(
    "scale", [1, *(pytest.param(scale, marks=pytest.mark.slow) for scale in (0.5, 2))]
)
@pytest.mark.parametrize("noise", [1e-5, 1e-4, 5e-4, 2e-3])
def test_noise_is_not_called_smoothing(
    noise: float, scale: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    above = scale * smoothed_labels._ABOVE_NOISE
    monkeypatch.setattr(smoothed_labels, "_ABOVE_NOISE", above)
    model, said = net(), 0
    for seed in range(12):
        picture = torch.rand(1, *SHAPE, generator=torch.Generator().manual_seed(seed))
        label = torch.tensor([seed % 5])
        for client in (loss, smoothed):
            value = client(model, Batch(picture, label))
            exact = torch.autograd.grad(value, list(model.parameters()))
            rng = torch.Generator().manual_seed(100 + seed)
            blurred = noise if client is loss else 0.0
            noised = [v + blurred * torch.randn(v.shape, generator=rng) for v in exact]
            facts: dict[str, Any] = {"image_shape": SHAPE, "num_examples": 1}
            victim = fedsim.Update.of(model, gradients=noised, loss=loss, **facts)
            image = (noised[0].T @ noised[1] / noised[1].square().sum()).reshape(1, *SHAPE)
            note = smoothed_labels.smoothing_note(
                victim.observation, victim.task, Batch(image, label)
            )
            assert bool(note) == (client is smoothed)
            said += bool(note)
    assert said == 12
