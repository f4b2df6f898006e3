"""Images of single units; no mixture has a certificate."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from attacks.base import Job, Reconstruction
from attacks.observed.first_linear import FirstLinear, UnitRows, unit_rows
from attacks.solved.ratio import Ratio, candidates
from clients.train import LocalTrainer
from fedsim.capture import CaptureKey, Observation
from fedsim.cell import TaskConfig
from fedsim.data.rows import load_rows
from fedsim.defenses import build_chain
from fedsim.errors import CannotAttack
from fedsim.federation import FederationConfig
from fedsim.knowledge import Knowledge
from fedsim.tasks import initial_weights, make_task
from fedsim.tasks.base import Task, state
from fedsim.tasks.images import ImageClassification
from fedsim.types import Batch

Capture = Callable[..., tuple[Task, Observation, Batch]]
Victim = Callable[..., tuple[Task, Observation]]
Pictures = Callable[..., Batch]


@pytest.fixture(scope="module")
def capture() -> Capture:
    """A client of a network trained for some steps."""
    rows = load_rows("shapes", "train[:400]", modality="image")
    config = TaskConfig(model="mlp", dataset="shapes")
    task = make_task(config, rows)
    network = task.model(initial_weights(task, config, 0))
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01)
    data = task.encode(rows)
    for step in range(150):
        optimizer.zero_grad()
        task.loss(network, data[[(step * 32 + i) % 400 for i in range(32)]]).backward()
        optimizer.step()
    sent = state(network)

    def make(
        first: int, count: int, *defenses: dict[str, object], **more: object
    ) -> tuple[Task, Observation, Batch]:
        options = {"batch_size": count, "engine": "in-process", **more}
        federation = FederationConfig.model_validate(options)
        chain = build_chain(defenses, "defenses")
        trainer = LocalTrainer(task, federation, chain, 0, torch.device("cpu"))
        update = trainer.run(sent, rows.take(list(range(first, first + count))), 1, 0)
        knowledge = Knowledge(
            num_examples=count,
            local_steps=len(update.steps),
            learning_rate=federation.learning_rate,
            optimizer="sgd",
        )
        key = CaptureKey(round=1, client=0)
        return task, Observation(key, sent, update.tensors, update.kind, knowledge), update.batch

    return make


def run(task: Task, seen: Observation) -> Reconstruction:
    (guess,) = Ratio().reconstruct([seen], task, [torch.Generator().manual_seed(0)], Job())
    return guess


def right(guess: Reconstruction, truth: Batch) -> list[bool]:
    """Which guesses are a private image, to half a byte, with its label."""
    distance = torch.cdist(guess.guess.inputs.flatten(1), truth.inputs.flatten(1), p=torch.inf)
    least, which = distance.min(1)
    return ((least < 0.5 / 255) & (guess.guess.labels == truth.labels[which])).tolist()


def test_certified_images_are_exact(capture: Capture) -> None:
    found = total = 0
    for first in range(0, 60, 6):
        task, seen, truth = capture(first, 6)
        guess = run(task, seen)
        levels = guess.confidence or ()
        proven = [level == "certified" for level in levels]
        assert len(guess.guess) == 6
        assert [a for a, sure in zip(right(guess, truth), proven, strict=True) if sure] == [
            True
        ] * sum(proven)
        assert levels == tuple(sorted(levels, key=["certified", "in_span", "guess"].index))
        found, total = found + sum(proven), total + 6
    assert found > total / 4


def test_one_image_is_certain(capture: Capture) -> None:
    for more in ({}, {"protocol": "fedavg", "learning_rate": 0.1, "local_steps": 1}):
        task, seen, truth = capture(7, 1, **more)
        guess = run(task, seen)
        assert right(guess, truth) == [True]
        assert guess.confidence == ("certified",)


def test_certificates_need_the_scale(capture: Capture) -> None:
    task, seen, truth = capture(7, 1)
    guess = run(task, replace(seen, knowledge=Knowledge()))
    assert right(guess, truth) == [True]
    assert guess.confidence == ("in_span",)
    task, seen, truth = capture(7, 1, protocol="fedavg", learning_rate=0.1, local_steps=3)
    assert run(task, seen).confidence == ("in_span",)


def test_noise_leaves_grey(capture: Capture) -> None:
    task, seen, _ = capture(0, 3, {"name": "gaussian_noise", "std": 0.1})
    guess = run(task, seen)
    assert "certified" not in (guess.confidence or ())
    blank = (guess.guess.inputs == 0.5).flatten(1).all(1)
    assert bool(blank.all())
    assert guess.guess.labels.tolist() == [-1] * 3
    assert guess.note == "no unit isolates 3 of the examples, guessed grey"


def test_mixtures_that_agree_are_not_certified() -> None:
    # With two classes and one hidden layer, all slopes are parallel at the output, so that all
    # units which two images share show the same mixture of them, and they are the most.
    rows = load_rows("shapes", "train[:8]", modality="image")
    spec = make_task(TaskConfig(model="mlp", dataset="shapes"), rows).spec
    shape = {"architecture": {"width": 64, "depth": 1}, "num_classes": 2}
    task = ImageClassification(spec.model_copy(update=shape))
    for seed in range(4):
        pair = task.encode(rows.take([2 * seed, 2 * seed + 1]))
        batch = Batch(pair.inputs, torch.zeros(2, dtype=torch.int64))
        network = task.build()
        network.initialise(torch.Generator().manual_seed(seed))  # type: ignore[operator]
        gradient, known = task.gradient(network, batch), Knowledge(num_examples=2)
        key = CaptureKey(round=1, client=0)
        seen = Observation(key, state(network), gradient, "gradient", known)
        layer = FirstLinear("body.1", "body.1.weight", "body.1.bias")
        images, units = candidates(unit_rows(seen, layer, torch.device("cpu")), layer)
        distance = torch.cdist(images, batch.inputs.flatten(1).double(), p=torch.inf).min(1).values
        assert int(units.sum(1).argmax()) == int(distance.argmax()) == 0
        guess = run(task, seen)
        assert guess.confidence == ("certified", "certified")
        assert right(guess, batch) == [True, True]


def test_candidates_are_images_of_their_units() -> None:
    image = torch.tensor([0.2, 0.7, 1.0], dtype=torch.float64)
    other = torch.tensor([0.9, 0.1, 0.3], dtype=torch.float64)
    rows = [-3 * image, 2 * image, 0 * image, 5 * other, 1.5 * image - 0.5 * other]
    bias = torch.tensor([-3.0, 2, 0, 5, 1], dtype=torch.float64)
    matrix = torch.cat([torch.stack(rows), bias[:, None]], 1)
    small = torch.full((5,), 1e-12, dtype=torch.float64)
    found, units = candidates(UnitRows(matrix, small, small), FirstLinear("", "", ""))
    torch.testing.assert_close(found, torch.stack([image, other]))
    assert units.tolist() == [[True, True, False, False, False], [False, False, False, True, False]]
    # With noise as large as half a byte, nothing is an image.
    assert len(candidates(UnitRows(matrix, small + 0.01, small), FirstLinear("", "", ""))[0]) == 0


def test_convolutions_are_refused(victim: Victim, pictures: Pictures) -> None:
    task, seen = victim(pictures(1, 3))
    with pytest.raises(CannotAttack, match=re.escape("LeNet has no linear layer")):
        run(task, seen)
