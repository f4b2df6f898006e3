"""Inverting Gradients: closed forms of its terms, lanes, defenses and budget."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from attacks.base import Job
from attacks.distance import cosine_distance
from attacks.inverting import Inverting, total_variation
from attacks.replay import replay
from fedsim.capture import Observation
from fedsim.defenses.prune import Prune
from fedsim.errors import CannotAttack
from fedsim.tasks.base import Task
from fedsim.types import Batch, Tensors

Victim = Callable[..., tuple[Task, Observation]]
Pictures = Callable[..., Batch]
CPU = torch.device("cpu")


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_total_variation() -> None:
    flat, edge = torch.full((2, 3, 4, 4), 0.3), torch.zeros(1, 1, 4, 4)
    edge[..., 2:] = 1
    assert total_variation(flat) == 0
    # One unit step in each of four rows, over sixteen pixels.
    assert total_variation(edge) == total_variation(edge.mT) == 4 / 16


@pytest.mark.parametrize("step_size", [None, 0.1])
def test_recovers_an_image(victim: Victim, pictures: Pictures, step_size: float | None) -> None:
    batch = pictures(1, 6)
    # The cosine needs neither the step size nor the number of steps.
    task, seen = victim(batch, step_size=step_size, learning_rate=None)
    (found,) = Inverting(steps=300).reconstruct([seen], task, [rng()], Job())
    grey = (batch.inputs - 0.5).square().mean()
    assert found.guess.labels.tolist() == [6]
    assert (found.guess.inputs - batch.inputs).square().mean() < 0.1 * grey
    assert (found.steps, found.expired) == (300, False)
    assert [step for step, _, _ in found.trace] == [0, 100, 200, 300]


def test_objective_is_the_matching_loss_of_the_guess(victim: Victim, pictures: Pictures) -> None:
    task, seen = victim(pictures(2, 6, 1))
    (found,) = Inverting(steps=7, restarts=3).reconstruct([seen], task, [rng()], Job())
    gradient = replay(seen, task, CPU).pure_gradient(found.guess)
    assert found.objective == pytest.approx(float(cosine_distance(gradient, seen.received)))
    single = Inverting(steps=7).reconstruct([seen], task, [rng()], Job())[0].objective
    assert single is not None
    assert found.objective is not None
    assert found.objective <= single + 1e-6


def test_guess_does_not_depend_on_the_group(victim: Victim, pictures: Pictures) -> None:
    batches = [pictures(1, 6), pictures(1, 2, seed=1), pictures(2, 3, 3, seed=2)]
    seen = [victim(batch, client=i)[1] for i, batch in enumerate(batches)]
    task = victim(batches[0])[0]
    rngs = [rng(i) for i in range(3)]
    together = Inverting(steps=5, restarts=2, lanes=3).reconstruct(seen, task, rngs, Job())
    assert [found.guess.labels.tolist() for found in together] == [[6], [2], [3, 3]]
    for i, found in enumerate(together):
        (alone,) = Inverting(steps=5, restarts=2).reconstruct([seen[i]], task, [rng(i)], Job())
        torch.testing.assert_close(alone.guess.inputs, found.guess.inputs, atol=1e-3, rtol=0)
    assert not torch.allclose(together[0].guess.inputs, together[1].guess.inputs, atol=0.1)


@pytest.mark.parametrize(
    "defense",
    [
        {"name": "prune", "fraction": 0.9},
        {"name": "sign"},
        {"name": "gaussian_noise", "std": 0.1},
        {"name": "freeze_embeddings"},
    ],
)
def test_adaptive_runs_with_each_defense(
    victim: Victim, pictures: Pictures, defense: dict[str, object]
) -> None:
    task, seen = victim(pictures(1, 6), defense=(defense,))
    (found,) = Inverting(steps=2, adaptive=True).reconstruct([seen], task, [rng()], Job())
    assert found.objective is not None
    assert found.objective < 1


def test_adaptive_matches_a_pruned_update_better(victim: Victim, pictures: Pictures) -> None:
    task, seen = victim(pictures(1, 6), defense=({"name": "prune", "fraction": 0.9},))
    pruned: Tensors = Prune(fraction=0.9).on_update(seen.received, rng())
    seen = replace(seen, received=pruned)
    plain, adaptive = (
        Inverting(steps=150, adaptive=flag).reconstruct([seen], task, [rng()], Job())[0]
        for flag in (False, True)
    )
    assert plain.objective is not None
    assert adaptive.objective is not None
    assert adaptive.objective < 0.5 * plain.objective


def test_adaptive_needs_the_defense(victim: Victim, pictures: Pictures) -> None:
    task, seen = victim(pictures(1, 6))
    message = (
        "round-0001-client-0000: an adaptive attack needs the client's defense, which the server "
        "does not know. Grant server_knows.defense, or set adaptive = false."
    )
    with pytest.raises(CannotAttack, match=re.escape(message)):
        Inverting(adaptive=True).reconstruct([seen], task, [rng()], Job())
    assert Inverting(adaptive=True).is_adaptive
    assert not Inverting().is_adaptive


@pytest.mark.parametrize("train_mode", [False, True])
def test_batch_normalisation(victim: Victim, pictures: Pictures, train_mode: bool) -> None:
    batch = pictures(2, 6, 2, size=8)
    task, seen = victim(batch, model="resnet20", train_mode=train_mode, labels=(6, 2))
    if train_mode:
        network = task.model(seen.sent).train()
        seen = replace(seen, received=task.gradient(network, batch))
    sent = {name: value.clone() for name, value in seen.sent.items()}
    (found,) = Inverting(steps=1).reconstruct([seen], task, [rng()], Job())
    gradient = replay(seen, task, CPU).pure_gradient(found.guess)
    expected = float(cosine_distance(gradient, seen.received))
    assert found.objective == pytest.approx(expected, abs=1e-4)
    assert all(torch.equal(value, sent[name]) for name, value in seen.sent.items())
    truth = replay(seen, task, CPU).pure_gradient(batch)
    assert float(cosine_distance(truth, seen.received)) == pytest.approx(0, abs=1e-5)


def test_deadline_returns_the_best_so_far(victim: Victim, pictures: Pictures) -> None:
    task, seen = victim(pictures(1, 6))
    job = Job(deadline=time.monotonic())
    (found,) = Inverting().reconstruct([seen], task, [rng()], job)
    assert (found.expired, found.steps) == (True, 0)
    assert found.guess.inputs.isfinite().all()
