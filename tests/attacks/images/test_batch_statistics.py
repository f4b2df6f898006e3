"""What the buffers of a client in train mode give away, and how a guess is judged by it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch
from torch import nn

from attacks.base import Job
from attacks.images.batch_statistics import StatisticsLoss, observed_statistics
from attacks.images.image_losses import ImageLoss
from attacks.images.inverting import Inverting
from attacks.observed.replay import replay
from fedsim.capture import CaptureKey, Observation
from fedsim.errors import CannotAttack
from fedsim.knowledge import Knowledge
from fedsim.tasks.base import Task, TaskSpec, state
from fedsim.tasks.images import ImageClassification
from fedsim.types import Batch, Tensors

Pictures = Callable[..., Batch]
LAYER = "blocks.4.bn1"


def client(batches: Sequence[Batch], *, sends: bool = True) -> tuple[Task, Observation, Tensors]:
    """A client in train mode that sees these batches; and what one layer was given, by step."""
    spec = TaskSpec(
        kind="image-classification",
        model="resnet20",
        architecture={},
        num_classes=10,
        input_shape=tuple(batches[0].inputs.shape[1:]),
    )
    task = ImageClassification(spec)
    network = task.build()
    network.initialise(torch.Generator().manual_seed(3))  # type: ignore[operator]
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.fill_(0.3)  # type: ignore[union-attr]
    sent, inputs = state(network), []
    network.get_submodule(LAYER).register_forward_pre_hook(lambda _, args: inputs.append(args[0]))
    network.train()
    for batch in batches:
        gradient = task.gradient(network, batch)
    buffers = {k: v for k, v in state(network).items() if k not in gradient} if sends else {}
    known = Knowledge(
        labels=tuple(batches[-1].labels.tolist()),
        num_examples=len(batches[-1]),
        train_mode=True,
        local_steps=len(batches),
    )
    kind = "gradient" if len(batches) == 1 else "weights"
    key = CaptureKey(round=1, client=0)
    seen = Observation(key, sent, gradient | buffers, kind, known)  # type: ignore[arg-type]
    means = torch.stack([value.detach().mean((0, 2, 3)) for value in inputs])
    variances = torch.stack([value.detach().var((0, 2, 3)) for value in inputs])
    return task, seen, {"means": means, "variances": variances}


def test_one_step_gives_the_statistics_of_the_batch(pictures: Pictures) -> None:
    task, seen, given = client([pictures(2, 3, 5, size=8)])
    tensors = observed_statistics(seen, task.build())
    assert torch.allclose(tensors[f"batch-mean {LAYER}"], given["means"][0], rtol=1e-4, atol=1e-5)
    exact = given["variances"][0]
    assert torch.allclose(tensors[f"batch-variance {LAYER}"], exact, rtol=1e-4, atol=1e-5)
    assert len(tensors) == 2 * 19


def test_several_steps_give_their_weighted_mean(pictures: Pictures) -> None:
    batches = [pictures(2, 3, 5, size=8, seed=seed) for seed in range(3)]
    task, seen, given = client(batches)
    weights = torch.tensor([0.81, 0.9, 1.0])
    expected = (weights[:, None] * given["means"]).sum(0) / weights.sum()
    statistics = observed_statistics(seen, task.build())[f"batch-mean {LAYER}"]
    assert torch.allclose(statistics, expected, rtol=1e-4, atol=1e-5)
    unknown = replace(seen, knowledge=seen.knowledge.model_copy(update={"local_steps": None}))
    statistics = observed_statistics(unknown, task.build())[f"batch-mean {LAYER}"]
    assert torch.equal(statistics, seen.received[f"{LAYER}.running_mean"])


def test_examples_taken_one_by_one_leave_no_statistics_of_a_batch(pictures: Pictures) -> None:
    batch = pictures(4, 3, 5, 1, 0, size=8)
    task, seen, _ = client([batch[i] for i in range(4)])
    facts = seen.knowledge.model_copy(update={"num_examples": 4, "local_steps": 1})
    for kind in ("gradient", "weights"):
        alone = replace(seen, kind=kind, knowledge=facts)
        with pytest.raises(CannotAttack, match="'bn1' counted 4 batches in 1 local steps"):
            observed_statistics(alone, task.build())


def test_what_the_client_keeps_is_taken_from_the_broadcast(pictures: Pictures) -> None:
    task, seen, _ = client([pictures(2, 3, 5, size=8)], sends=False)
    tensors = observed_statistics(seen, task.build())
    assert tensors[f"batch-mean {LAYER}"].tolist() == pytest.approx([0.3] * 32)


def test_the_distance_is_least_at_the_truth(pictures: Pictures) -> None:
    batch = pictures(2, 3, 5, size=8)
    task, seen, _ = client([batch])
    model = replay(seen, task, torch.device("cpu"))
    loss = StatisticsLoss(ImageLoss(model), 0.5)
    observed = {k: v for k, v in seen.received.items() if k in model.parameters}
    observed |= observed_statistics(seen, model.network)
    here = loss.distance(batch.inputs, batch.labels, observed)
    swapped = loss.distance(batch.inputs.flip(0), batch.labels, observed)
    other = loss.distance(pictures(2, 3, 5, size=8, seed=1).inputs, batch.labels, observed)
    assert float(here) < 0.01 * float(other)
    assert float(swapped) == pytest.approx(float(here), abs=1e-3)
    matching = loss.loss(batch.inputs, batch.labels, {k: observed[k] for k in model.parameters})
    whole = loss(batch.inputs, batch.labels, observed)
    assert float(whole) == pytest.approx(float(matching + 0.5 * here), abs=1e-5)


def attack(seen: Observation, task: Task, weight: float, steps: int) -> Batch:
    inverting = Inverting(steps=steps, batch_statistics=weight)
    rngs = [torch.Generator().manual_seed(0)]
    (recovered,) = inverting.reconstruct([seen], task, rngs, Job())
    return recovered.guess


def test_the_attack_descends_on_the_statistics_too(pictures: Pictures) -> None:
    batch = pictures(2, 3, 5, size=4)
    task, seen, _ = client([batch])
    guess = attack(seen, task, 0.1, 2)
    assert guess.inputs.shape == batch.inputs.shape
    assert not torch.equal(guess.inputs, attack(seen, task, 0.0, 2).inputs)


def test_a_model_without_statistics_cannot_be_judged_by_them(
    pictures: Pictures, victim: Callable[..., tuple[Task, Observation]]
) -> None:
    task, seen = victim(pictures(1, 3), labels=(3,))
    with pytest.raises(CannotAttack, match="no batch normalisation"):
        attack(seen, task, 0.1, 1)
