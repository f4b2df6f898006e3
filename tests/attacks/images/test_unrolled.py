"""Images of several local steps, whose order is part of the search."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch

from attacks.base import Job
from attacks.images.bayes import Bayes
from attacks.images.unrolled import Arrangement, likely_arrangements
from attacks.observed.local_steps import SimulatedSteps
from attacks.observed.replay import replay
from fedsim.config.federation import FederationConfig
from fedsim.defenses.chain import Chain
from fedsim.local.client import LocalClient
from fedsim.store.capture import Observation
from fedsim.tasks.base import Task
from fedsim.types import Batch
from tests.attacks.images.cases import rng

Victim = Callable[..., tuple[Task, Observation]]
Pictures = Callable[..., Batch]
CPU = torch.device("cpu")


def after(
    victim: Victim, batch: Batch, plan: Sequence[Sequence[int]], **options: object
) -> tuple[Task, Observation]:
    """What the server sees of a client that took these steps."""
    task, seen = victim(batch)
    config = FederationConfig.model_validate(
        {
            "protocol": "fedavg",
            "learning_rate": 0.1,
            "batch_size": len(plan[0]),
            "local_steps": len(plan),
            **options,
        }
    )
    done = LocalClient(task, config, Chain(), 0, CPU).defend(seen.sent, batch, plan, 1, 0)
    facts = seen.knowledge.model_copy(
        update={
            "labels": tuple(sorted(batch.labels.tolist())),
            "learning_rate": config.learning_rate,
            "batch_size": config.batch_size,
            "local_steps": len(plan),
            "optimizer": config.optimizer,
            "train_mode": False,
            "training": config.training,
            "defense": (),
        }
    )
    return task, replace(seen, received=done.tensors, kind="weights", knowledge=facts)


def granted(
    victim: Victim, batch: Batch, plan: Sequence[Sequence[int]], **options: object
) -> tuple[Observation, SimulatedSteps]:
    """What the server sees of these steps, and the steps as it knows them."""
    task, seen = after(victim, batch, plan, **options)
    steps = SimulatedSteps.of(seen, replay(seen, task, CPU))
    assert steps is not None
    return seen, steps


def error(guess: Batch, truth: Batch) -> float:
    """Mean squared error of images whose labels all differ."""
    own, other = guess.labels.argsort(), truth.labels.argsort()
    return float((guess.inputs[own] - truth.inputs[other]).square().mean())


@pytest.mark.parametrize("options", [{}, {"optimizer": "momentum", "momentum": 0.5}])
def test_the_order_of_classes_follows_from_the_mean_image(
    victim: Victim, pictures: Pictures, options: dict[str, object]
) -> None:
    seen, steps = granted(victim, pictures(3, 6, 1, 3), [[1], [2], [0]], **options)
    assert (steps.sizes, steps.epochs) == ([1, 1, 1], [slice(0, 3)])
    labels, grey = torch.tensor([1, 3, 6]), torch.full((3, 16, 16), 0.5)
    tried = likely_arrangements(steps, labels, grey, seen.update(), rng(), lambda: False)
    assert tried[0].labels.tolist() == [1, 3, 6]
    assert len({tuple(one.labels.tolist()) for one in tried}) == len(tried) > 3


def test_exchanges_within_a_step_are_no_other_arrangement(
    victim: Victim, pictures: Pictures
) -> None:
    _, steps = granted(victim, pictures(3, 6, 1, 3), [[0, 1], [2], [2, 0], [1]])
    assert (steps.sizes, steps.epochs) == ([2, 1, 2, 1], [slice(0, 3), slice(3, 6)])
    arrangement = Arrangement(torch.tensor([6, 1, 3]), torch.tensor([0, 1, 2, 2, 0, 1]))
    named = {steps.labels_of(other.labels, other.order) for other in arrangement.exchanged(steps)}
    assert len(named) == 5  # of six exchanges, two change nothing
    batches = steps.labels_of(arrangement.labels, arrangement.order)
    assert batches == ((1, 6), (3,), (3, 6), (1,))
    assert batches in named


def test_a_place_is_taken_earlier_or_later(victim: Victim, pictures: Pictures) -> None:
    _, steps = granted(victim, pictures(3, 6, 1, 3), [[1], [2], [0], [2], [0], [1]])
    arrangement = Arrangement(torch.tensor([6, 1, 3]), torch.tensor([0, 1, 2, 2, 0, 1]))
    moved = [
        (tuple(other.labels.tolist()), tuple(other.order.tolist()))
        for other in arrangement.moved(steps)
    ]
    assert {labels for labels, order in moved if order == (0, 1, 2, 2, 0, 1)} == {
        *((1, 3, 6), (3, 6, 1)),  # the first last, and the last first
        *((1, 6, 3), (6, 3, 1)),  # neighbours
    }
    assert {order[3:] for labels, order in moved if labels == (6, 1, 3)} == {
        *((0, 1, 2), (1, 2, 0)),
        *((0, 2, 1), (2, 1, 0)),
    }
    assert len(moved) == 12


@pytest.mark.slow
def test_images_of_steps_come_back_and_not_by_one_gradient(
    victim: Victim, pictures: Pictures
) -> None:
    batch = pictures(2, 6, 1)
    task, seen = after(victim, batch, [[0], [1], [1], [0]], learning_rate=0.3)
    attack = Bayes(steps=200, evaluations=200, orders=4)
    (recovered,) = attack.reconstruct([seen], task, [rng()], Job())
    (single,) = replace(attack, unroll=False).reconstruct([seen], task, [rng()], Job())
    grey = float((batch.inputs - 0.5).square().mean())
    assert error(recovered.guess, batch) < 0.1 * grey < error(single.guess, batch)
    assert recovered.objective is not None
    assert recovered.objective < 1e-4
    assert recovered.trace[-1][0] >= 200


@pytest.mark.parametrize(
    "facts", [{"training": None}, {"learning_rate": None}, {"optimizer": "adamw"}, {"cohort": 2}]
)
def test_steps_that_are_not_known_are_not_taken_again(
    victim: Victim, pictures: Pictures, facts: dict[str, object]
) -> None:
    task, seen = after(victim, pictures(2, 6, 1), [[0], [1]])
    model = replay(seen, task, CPU)
    assert SimulatedSteps.of(seen, model) is not None
    seen = replace(seen, knowledge=seen.knowledge.model_copy(update=facts))
    assert SimulatedSteps.of(seen, model) is None


def test_the_clock_ends_the_search(victim: Victim, pictures: Pictures) -> None:
    task, seen = after(victim, pictures(2, 6, 1), [[0], [1]])
    (recovered,) = Bayes().reconstruct([seen], task, [rng()], Job(deadline=0.0))
    assert recovered.expired
    assert recovered.guess.inputs.shape == (2, 3, 16, 16)
