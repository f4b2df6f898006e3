"""One image is read off the gradient layer by layer; what was changed is never certified."""

import os
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fedsim
from attacks.base import Job, Reconstruction
from attacks.solved.closed_form import ClosedForm
from attacks.solved.sequence import Sequence
from fedsim.data.rows import load_rows
from fedsim.defenses import build_chain
from fedsim.errors import CannotAttack
from fedsim.models import IMAGE_MODELS
from fedsim.models.network import ImageNetwork
from fedsim.store.capture import Observation
from fedsim.tasks.base import Task, state
from fedsim.tasks.given import task_of
from fedsim.types import Batch
from tests.attacks.images.cases import error

Victim = Callable[..., tuple[Task, Observation]]
Pictures = Callable[..., Batch]


def invert(task: Task, seen: Observation, auxiliary: Batch | None = None) -> Reconstruction:
    job = Job() if auxiliary is None else Job(auxiliary=lambda: auxiliary)
    (recovered,) = ClosedForm().reconstruct([seen], task, [torch.Generator().manual_seed(0)], job)
    return recovered


def exact(task: Task, seen: Observation, batch: Batch) -> Observation:
    """What a client that computes in float64 would send."""
    network = task.model(seen.sent).double()
    double = Batch(batch.inputs.double(), batch.labels)
    return replace(seen, received=task.gradient(network, double))


def trained(task: Task, seen: Observation, rows: Batch, steps: int) -> Observation:
    """The same client after some steps of Adam on other rows."""
    network = task.model(seen.sent)
    optimizer = torch.optim.Adam(network.parameters(), 1e-2)
    for _ in range(steps):
        optimizer.zero_grad()
        task.loss(network, rows).backward()
        optimizer.step()
    return replace(seen, sent=state(network))


@pytest.mark.parametrize(
    ("channels", "size"),
    [(1, 16), (3, 16), pytest.param(3, 32, marks=pytest.mark.slow)],  # as large as in test_cifar
)
def test_recovers_the_image_and_its_label(
    victim: Victim, pictures: Pictures, channels: int, size: int
) -> None:
    batch = pictures(1, 6, channels=channels, size=size)
    task, seen = victim(batch)
    recovered = invert(task, seen)  # a client in float32
    assert error(recovered, batch) < 1e-7
    assert (recovered.guess.inputs.dtype, recovered.guess.labels.tolist()) == (torch.float32, [6])
    assert recovered.confidence == ("certified",)
    assert (recovered.steps, recovered.expired) == (3, False)
    recovered = invert(task, exact(task, seen, batch))
    assert error(recovered, batch) < 1e-12
    assert recovered.objective is not None
    assert recovered.objective < 1e-7  # pixels are float32


def test_recovers_the_image_from_a_trained_model(victim: Victim, pictures: Pictures) -> None:
    rows = pictures(16, *range(8), *range(8), seed=1)
    batch = pictures(1, 3)
    task, seen = victim(batch)
    later = trained(task, seen, rows, steps=40)
    before, after = (task.loss(task.model(s.sent), rows).item() for s in (seen, later))
    assert after < 0.7 * before
    network = task.model(later.sent)
    recovered = invert(task, replace(later, received=task.gradient(network, batch)))
    assert error(recovered, batch) < 1e-5
    recovered = invert(task, exact(task, later, batch))
    assert error(recovered, batch) < 1e-8
    assert recovered.confidence == ("certified",)


def test_dead_features_keep_their_digits(victim: Victim, pictures: Pictures) -> None:
    batch = pictures(1, 3)
    task, seen = victim(batch)
    # Outputs of the last convolution fall to 1e-12 and less, as training with a large step does.
    sent = {k: v - 25 if k == "body.4.bias" else v for k, v in seen.sent.items()}
    recovered = invert(task, exact(task, replace(seen, sent=sent), batch))
    assert error(recovered, batch) < 1e-8


@pytest.mark.slow
def test_a_changed_update_is_not_certified(victim: Victim, pictures: Pictures) -> None:
    batch = pictures(1, 3)
    task, seen = victim(batch)
    rng = torch.Generator().manual_seed(0)
    noise = {k: torch.randn(v.shape, generator=rng) for k, v in seen.received.items()}
    changes = {
        "noise": {k: v + 0.01 * noise[k] for k, v in seen.received.items()},
        "signs": {k: v.sign() for k, v in seen.received.items()},
        "pruned": {k: v * (v.abs() > 0.1) for k, v in seen.received.items()},
    }
    for kind, received in changes.items():
        recovered = invert(task, replace(seen, received=received))
        assert recovered.confidence == ("guess",), kind
        assert recovered.objective is not None
        assert recovered.objective > 1e-3, kind
        assert error(recovered, batch) > 1e-3, kind
        assert recovered.guess.inputs.isfinite().all(), kind


@pytest.mark.slow
@pytest.mark.parametrize(
    ("defense", "share"),
    [
        ({"name": "gaussian_noise", "std": 0.001}, 0.1),
        ({"name": "prune", "fraction": 0.99}, 0.5),
        ({"name": "sign", "scale": "mean"}, 0.7),
        ({"name": "quantize", "kind": "int8"}, 0.1),
        ({"name": "dp_sgd", "clip": 1.0, "noise_multiplier": 0.01}, 0.7),
        ({"name": "dp_sgd", "clip": 1.0, "noise_multiplier": 100.0}, 1.01),
    ],
    ids=lambda value: value["name"] if isinstance(value, dict) else str(value),
)
def test_a_distorted_update_of_a_trained_model_beats_the_mean_image(
    victim: Victim, pictures: Pictures, defense: dict[str, object], share: float
) -> None:
    rows, batch = pictures(16, *range(8), *range(8), seed=1), pictures(1, 3)
    auxiliary = pictures(200, *[0] * 200, seed=2)
    task, seen = victim(batch, auxiliary=True)
    seen = trained(task, seen, rows, steps=40)
    chain, draw = build_chain((defense,), "defense"), torch.Generator().manual_seed(0)
    update = chain.on_gradient(task.gradient(task.model(seen.sent), batch), draw)
    update = chain.on_update(chain.on_sum(update, draw), draw)
    recovered = invert(task, replace(seen, received=update), auxiliary)
    prior = float((auxiliary.inputs.mean(0) - batch.inputs).square().mean())
    assert error(recovered, batch) <= share * prior
    assert recovered.confidence == ("guess",)
    assert bool(recovered.note) == (share > 1)


@pytest.mark.slow
def test_a_float16_wire_still_yields_every_byte(victim: Victim, pictures: Pictures) -> None:
    batch = pictures(1, 6)
    task, seen = victim(batch)
    recovered = invert(
        task, replace(seen, received={k: v.half() for k, v in seen.received.items()})
    )
    assert error(recovered, batch) < (0.5 / 255) ** 2


class Bent(ImageNetwork):
    """Two convolutions with tanh, one without a bias and one dilated."""

    def __init__(self, input_shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        self.one = nn.Conv2d(input_shape[0], 12, 3, padding=1, bias=False)
        self.two = nn.Conv2d(12, 14, 3, dilation=2, padding=(2, 2))
        self.act, self.bend = nn.Tanh(), nn.Tanh()
        self.flat, self.fc = nn.Flatten(), nn.Linear(14 * 64, num_classes)

    def initialise(self, rng: torch.Generator) -> None:
        """Small weights."""
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -0.1, 0.1, generator=rng)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Logits."""
        logits: torch.Tensor = self.fc(self.flat(self.bend(self.two(self.act(self.one(images))))))
        return logits


def test_another_activation_and_other_convolutions(
    victim: Victim, pictures: Pictures, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(IMAGE_MODELS, "bent", Bent)
    batch = pictures(1, 3, size=8)
    task, seen = victim(batch, model="bent")
    recovered = invert(task, exact(task, seen, batch))
    assert error(recovered, batch) < 1e-12
    assert recovered.confidence == ("certified",)


def test_only_for_one_image(victim: Victim, pictures: Pictures) -> None:
    task, seen = victim(pictures(2, 6, 3))
    message = "inverts the gradient of one image, and this is the mean of 2. Choose another attack"
    with pytest.raises(CannotAttack, match=message):
        invert(task, seen)


def test_a_linear_layer_that_takes_the_image_yields_it(victim: Victim, pictures: Pictures) -> None:
    batch = pictures(1, 3)
    task, seen = victim(batch, model="mlp")
    recovered = invert(task, seen)
    assert error(recovered, batch) < 1e-12
    assert recovered.confidence == ("certified",)


def test_other_models_are_refused(victim: Victim, pictures: Pictures) -> None:
    task, seen = victim(pictures(1, 3), model="resnet20")
    with pytest.raises(CannotAttack, match=re.escape("'bn1' is BatchNorm2d(16")) as refusal:
        invert(task, seen)
    assert "only convolutions, each followed by a Sigmoid or Tanh, and a final linear" in str(
        refusal.value
    )


class Rectified(ImageNetwork):
    """Its ReLU is a function, so that no module stands between its layers."""

    def __init__(self, input_shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        self.c = nn.Conv2d(input_shape[0], 8, 5, stride=2, padding=2)
        self.f = nn.Linear(8 * 4 * 4, num_classes)

    def initialise(self, rng: torch.Generator) -> None:
        """Small weights."""
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -0.1, 0.1, generator=rng)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = torch.relu(self.c(images))
        logits: torch.Tensor = self.f(hidden.flatten(1))
        return logits


def test_a_function_that_cannot_be_inverted_is_the_cause(
    victim: Victim, pictures: Pictures, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(IMAGE_MODELS, "rectified", Rectified)
    task, seen = victim(pictures(1, 3, size=8), model="rectified")
    with pytest.raises(CannotAttack, match="between 'c' and 'f' stands no Sigmoid or Tanh"):
        invert(task, seen)


def cross_entropy(model: nn.Module, batch: Batch) -> torch.Tensor:
    """The mean over the batch."""
    return nn.functional.cross_entropy(model(batch.inputs), batch.labels)


class Wide(nn.Module):
    """A convolution, a sigmoid and a linear layer."""

    def __init__(self, layer: nn.Conv2d, features: int, scale: float = 1.0) -> None:
        super().__init__()
        self.layer, self.act, self.fc = layer, nn.Sigmoid(), nn.Linear(features, 2)
        self.flat, self.scale = nn.Flatten(), scale

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Logits."""
        logits: torch.Tensor = self.fc(self.scale * self.flat(self.act(self.layer(images))))
        return logits


@pytest.mark.parametrize(
    ("network", "message"),
    [
        (
            Wide(nn.Conv2d(2, 4, 1, groups=2), 256),
            "'layer' has groups, or padding other than zeros",
        ),
        (Wide(nn.Conv2d(2, 4, 3, padding="same"), 256), "padding=same"),
        (Wide(nn.Conv2d(2, 1, 3), 36), "'layer' gives 54 equations for the 128 values"),
        (Wide(nn.Conv2d(2, 4, 1), 256, 2.0), "Wide does more than call its layers"),
    ],
)
def test_layers_that_it_cannot_invert(network: nn.Module, message: str) -> None:
    with pytest.raises(CannotAttack, match=re.escape(message)):
        Sequence.of(network, task_of(network, loss=cross_entropy, image_shape=(2, 8, 8)))


def test_what_was_not_sent_is_missed(victim: Victim, pictures: Pictures) -> None:
    task, seen = victim(pictures(1, 3))
    for name in ("fc.bias", "body.2.weight"):
        received = {k: v for k, v in seen.received.items() if k != name}
        with pytest.raises(CannotAttack, match=f"the client did not send {name!r}"):
            invert(task, replace(seen, received=received))


def test_an_update_without_an_answer(victim: Victim, pictures: Pictures) -> None:
    task, seen = victim(pictures(1, 3))
    for factor in (0.0, float("nan")):
        received = {k: v * factor for k, v in seen.received.items()}
        with pytest.raises(CannotAttack, match="the equations have no finite solution"):
            invert(task, replace(seen, received=received))


@pytest.mark.slow
@pytest.mark.skipif("FEDSIM_HUB" not in os.environ, reason="FEDSIM_HUB names no folder")
def test_cifar(victim: Victim) -> None:
    rows = load_rows("uoft-cs/cifar10", "test[:1]", modality="image")
    assert isinstance(rows.inputs, torch.Tensor)
    for image, label in zip(rows.inputs, rows.labels, strict=True):
        batch = Batch(image[None].float() / 255, label[None])
        recovered = invert(*victim(batch))
        assert error(recovered, batch) < 1e-7
        assert recovered.confidence == ("certified",)


@pytest.mark.some(2)
@pytest.mark.parametrize("noise", [1e-5, 1e-3])
def test_a_factor_of_the_loss_changes_nothing_under_noise(noise: float) -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4))
    image, label = torch.rand(1, 1, 8, 8), torch.tensor([2])

    def loss(model: Any, batch: Any) -> Tensor:
        return nn.functional.cross_entropy(model(batch.inputs), batch.labels)

    found = []
    for factor in (1.0, 1000.0):
        value = factor * loss(network, Batch(image, label))
        rng = torch.Generator().manual_seed(1)
        gradients = [
            part + factor * noise * torch.randn(part.shape, generator=rng)
            for part in torch.autograd.grad(value, list(network.parameters()))
        ]
        victim = fedsim.Update.of(
            network, gradients=gradients, loss=loss, image_shape=(1, 8, 8), num_examples=1
        )
        guess = fedsim.attack(victim, "closed_form", quiet=True)
        assert (guess.labels, guess.confidence) == ((2,), ("guess",))
        found.append((guess.objective, float((guess.images - image).square().mean())))
    objectives, errors = zip(*found, strict=True)
    assert objectives == pytest.approx([objectives[0]] * 2, rel=0.2)
    assert errors[1] < 2 * errors[0]


def test_steps_of_adam_on_rows_are_refused_where_no_likelihood_can_be_searched() -> None:
    """As in an application of tables, whose batches and optimizer nobody states."""

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        return nn.functional.binary_cross_entropy(model(batch.inputs), batch.labels)

    torch.manual_seed(0)
    hidden = nn.Linear(14, 16), nn.ReLU(), nn.Linear(16, 8), nn.ReLU()
    network = nn.Sequential(*hidden, nn.Linear(8, 1), nn.Sigmoid())
    before = {name: value.clone() for name, value in network.state_dict().items()}
    adam = torch.optim.Adam(network.parameters(), lr=1e-3)
    for _ in range(4):
        adam.zero_grad()
        loss(network, Batch(torch.randn(32, 14), (torch.rand(32, 1) < 0.3).float())).backward()
        adam.step()
    update = fedsim.Update.of(
        network, before=before, after=network.state_dict(), loss=loss, input_shape=(14,)
    )
    with pytest.raises(CannotAttack, match="curvature of its likelihood overflows"):
        fedsim.attack(update, "closed_form")
