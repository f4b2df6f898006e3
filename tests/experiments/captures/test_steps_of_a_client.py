"""What an update itself shows of the steps behind it, and what may be said of its classes."""

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import fedsim
from attacks.observed.replay import step_length
from experiments.captures.disclosures import Disclosure, disclosed
from experiments.captures.update import Update
from fedsim.errors import CannotAttack
from fedsim.knowledge import Knowledge
from fedsim.store.capture import CaptureKey, Observation
from tests.experiments.captures.conftest import loss

RATE, STEPS, BATCH, CLASSES = 1e-3, 4, 8, 4
LABELS = torch.tensor([0, 1, 1, 1, 0, 3, 1, 3] * STEPS)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.n = nn.Linear(64, 24), nn.BatchNorm1d(24)
        self.h = nn.Linear(24, CLASSES)
        nn.init.normal_(self.h.weight, std=0.01)

    def forward(self, images: Tensor) -> Tensor:
        return self.h(torch.relu(self.n(self.a(images.flatten(1)))))  # type: ignore[no-any-return]


def trained(make: Any, steps: int = STEPS, **knows: Any) -> Update:
    """A client's update, of ``steps`` batches."""
    torch.manual_seed(0)
    net = Net()
    after = copy.deepcopy(net).train()
    optimizer = make(after.parameters())
    images = torch.rand(BATCH * steps, 1, 8, 8)
    labels = LABELS[: BATCH * steps]
    for rows in torch.arange(BATCH * steps).split(BATCH):
        optimizer.zero_grad()
        F.cross_entropy(after(images[rows]), labels[rows]).backward()
        optimizer.step()
    return Update.of(
        Net,
        before=net.state_dict(),
        after=after.state_dict(),
        lr=RATE,
        loss=loss,
        image_shape=(1, 8, 8),
        num_examples=BATCH * steps,
        **knows,
    )


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, RATE)


def momentum(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, RATE, momentum=0.9)


def counts(disclosure: Disclosure) -> list[int]:
    return [disclosure.labels.get(str(k), 0) for k in range(CLASSES)]


def test_normalisation_layers_tell_steps_and_mode() -> None:
    victim = trained(sgd)
    known = victim.observation.knowledge
    assert (known.local_steps, known.train_mode) == (STEPS, True)
    assert "counted 4 batches" in str(victim)
    stated = trained(sgd, local_steps=2, train_mode=False)
    known = stated.observation.knowledge
    assert (known.local_steps, known.train_mode, "counted" in str(stated)) == (2, False, False)


def test_class_counts_of_several_steps_need_the_optimizer() -> None:
    true = torch.bincount(LABELS).tolist()
    assert counts(disclosed(trained(sgd, optimizer="sgd"))) == true
    assert counts(disclosed(trained(momentum, optimizer="momentum"))) == true
    assert counts(disclosed(trained(momentum, optimizer="sgd"))) != true
    unknown = disclosed(trained(momentum))
    assert (unknown.labels, "--knows optimizer=sgd, or momentum" in unknown.no_labels) == ({}, True)


def test_signs_of_a_first_step_of_adam_are_no_class_counts() -> None:
    said = disclosed(trained(lambda p: torch.optim.Adam(p, RATE), steps=1))
    assert (said.labels, "Adam's first step" in said.no_labels) == ({}, True)
    plain = disclosed(trained(sgd, steps=1))
    assert counts(plain) == torch.bincount(LABELS[:BATCH], minlength=CLASSES).tolist()


@pytest.mark.parametrize(("inertia", "steps"), [(0.9, 1), (0.9, 4), (0.5, 3)])
def test_steps_of_momentum_along_one_gradient_are_as_long_as_told(
    inertia: float, steps: int
) -> None:
    value, slope = nn.Parameter(torch.zeros(3, dtype=torch.float64)), torch.tensor([1.0, -2, 3])
    optimizer = torch.optim.SGD([value], RATE, momentum=inertia)
    for _ in range(steps):
        value.grad = slope.double()
        optimizer.step()
    options: dict[str, Any] = {"optimizer": "momentum", "training": {"momentum": inertia}}
    known = Knowledge(learning_rate=RATE, local_steps=steps, **options)
    seen = Observation(CaptureKey(round=1, client=0), {}, {}, "weights", known)
    torch.testing.assert_close(-value.detach() / step_length(seen), slope.double())


class Plain(nn.Module):
    """Without batch normalisation, which would count its steps."""

    def __init__(self) -> None:
        super().__init__()
        self.c, self.h = nn.Conv2d(1, 6, 5, 2, 2), nn.Linear(96, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        return self.h(torch.sigmoid(self.c(images)).flatten(1))  # type: ignore[no-any-return]


def plainly(steps: int, make: Any = sgd, **knows: Any) -> Update:
    """Weights after steps of ``BATCH`` examples, and a claim of all of them."""
    torch.manual_seed(0)
    net = Plain()
    after = copy.deepcopy(net)
    optimizer = make(after.parameters())
    images, labels = torch.rand(BATCH * steps, 1, 8, 8), LABELS[: BATCH * steps]
    for rows in torch.arange(BATCH * steps).split(BATCH):
        optimizer.zero_grad()
        F.cross_entropy(after(images[rows]), labels[rows]).backward()
        optimizer.step()
    given: Any = {"before": net.state_dict(), "after": after.state_dict(), "loss": loss}
    update = Update.of(net, **given, image_shape=(1, 8, 8), **knows)
    return replace(update, claimed_examples=BATCH * steps)


@pytest.mark.some(5)
@pytest.mark.parametrize("steps", [1, STEPS])
@pytest.mark.parametrize("knows", [{}, {"lr": RATE}, {"local_steps": 3}])
def test_a_search_takes_the_length_of_steps_that_nobody_stated(
    steps: int, knows: dict[str, Any]
) -> None:
    guess = fedsim.attack(plainly(steps, **knows), "inverting", steps=2, quiet=True)
    wrong = torch.bincount(torch.tensor(guess.labels), minlength=CLASSES)
    wrong = wrong - LABELS[: BATCH * steps].bincount(minlength=CLASSES)
    assert int(wrong.abs().sum()) <= BATCH * (steps > 1)  # twice as many as are wrong
    assert guess.certified == (False,) * BATCH * steps
    assert ("local_steps=" in guess.note) == ("local_steps" not in knows)
    assert ("learning_rate=" in guess.note) == ("lr" not in knows)
    assert "last layer's bias" in guess.note


def test_several_steps_of_one_example_are_said_to_count_as_one() -> None:
    update = replace(plainly(1), claimed_examples=1)
    guess = fedsim.attack(update, "inverting", steps=2, quiet=True)
    assert "pass local_steps" in guess.note


@pytest.mark.parametrize(
    ("make", "knows"),
    [(lambda p: torch.optim.Adam(p, RATE), {}), (sgd, {"optimizer": "adamw"})],
    ids=["signs", "stated"],
)
def test_no_length_is_taken_of_what_is_no_multiple_of_a_gradient(
    make: Any, knows: dict[str, Any]
) -> None:
    with pytest.raises(CannotAttack, match="needs local_steps and learning_rate"):
        fedsim.attack(plainly(1, make, **knows), "inverting", steps=2, quiet=True)


def test_an_activation_called_as_a_function_is_a_layer() -> None:
    torch.manual_seed(0)
    net, image = Plain(), torch.rand(1, 1, 8, 8)
    value = F.cross_entropy(net(image), torch.tensor([2]))
    gradients = torch.autograd.grad(value, list(net.parameters()))
    update = Update.of(net, gradients=gradients, loss=loss, image_shape=(1, 8, 8))
    guess = fedsim.attack(update, "closed_form", quiet=True)
    assert (guess.labels, guess.certified) == ((2,), (True,))
    assert guess.images is not None
    assert float((guess.images - image).abs().max()) < 1e-4


@pytest.mark.some(9)
@pytest.mark.parametrize("told", [{}, {"optimizer": "sgd"}])
@pytest.mark.parametrize(
    "make",
    [torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop, torch.optim.Adagrad],
)
def test_steps_of_one_size_are_said_to_be_of_another_optimizer(
    make: Any, told: dict[str, Any]
) -> None:
    update = plainly(1, lambda parameters: make(parameters, RATE), lr=RATE, local_steps=1, **told)
    guess = fedsim.attack(replace(update, claimed_examples=1), "closed_form", quiet=True)
    assert "of one size" in guess.note
    assert "pass optimizer=adam" in guess.note
    assert not guess.certified[0]
