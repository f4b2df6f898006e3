"""Image matching over rounds: its loss, what it may use, and what more rounds are worth."""

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from attacks.base import Job, Reconstruction
from attacks.images.gi_gip import GIGIP
from attacks.images.image_losses import matching_loss
from attacks.images.image_matching import common_labels, joined
from attacks.images.inverting import Inverting
from attacks.images.victims import RoundsLoss, VictimGroup
from attacks.observed.labels import find_head
from attacks.observed.replay import replay
from attacks.observed.same_rows import ALONE
from fedsim.store.capture import CaptureKey, Observation
from fedsim.tasks.base import Task, state
from fedsim.types import Batch
from tests.attacks.images.cases import error, rng

Victim = Callable[..., tuple[Task, Observation]]
Pictures = Callable[..., Batch]
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _unguarded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The searches are short, and would mostly give way to the prior."""
    monkeypatch.setattr("attacks.images.image_matching.guarded", lambda found, *_: found)


def rounds(
    victim: Victim, batch: Batch, count: int, noise: float = 0.0, **facts: object
) -> tuple[Task, list[Observation]]:
    """A client's gradients on the same batch, each at weights of its own and with noise."""
    task, first = victim(batch, model="mlp", **{"all_rows": True, **facts})
    observations = []
    for number in range(1, count + 1):
        network = task.build()
        network.initialise(rng(number))  # type: ignore[operator]
        gradient = task.gradient(network, batch)
        norm = torch.stack([value.norm() for value in gradient.values()]).norm()
        draw = rng(100 + number)
        received = {
            name: value + noise * norm * torch.randn(value.shape, generator=draw)
            for name, value in gradient.items()
        }
        key = CaptureKey(round=number, client=0)
        observations.append(replace(first, key=key, sent=state(network), received=received))
    return task, observations


def test_surprises_of_rounds_add_up(victim: Victim, pictures: Pictures) -> None:
    task, seen = rounds(victim, pictures(1, 6), 2)
    guess, losses, terms = pictures(1, 6, seed=1), [], []
    for observation in seen:
        loss = matching_loss(replay(observation, task, CPU), observation, adaptive=False)
        losses.append(loss)
        terms.append(loss.evidence(guess.inputs, guess.labels, observation.received))
    observed = {
        name: torch.stack([observation.received[name] for observation in seen])
        for name in seen[0].received
    }
    distance, surprise = RoundsLoss(tuple(losses)).evidence(guess.inputs, guess.labels, observed)
    torch.testing.assert_close(distance, (terms[0][0] + terms[1][0]) / 2)
    torch.testing.assert_close(surprise, terms[0][1] + terms[1][1])


def attack(
    task: Task, seen: list[Observation], job: Job | None = None, **options: Any
) -> list[Reconstruction]:
    rngs = [rng(observation.key.round) for observation in seen]
    return Inverting(over_rounds=True, **options).reconstruct(seen, task, rngs, job or Job())


def test_the_loss_is_the_mean_over_rounds_at_their_own_weights(
    victim: Victim, pictures: Pictures
) -> None:
    batch = pictures(2, 6, 1, size=8)
    task, seen = rounds(victim, batch, 3, noise=0.01)
    losses = [matching_loss(replay(one, task, CPU), one, adaptive=False) for one in seen]
    stacked = {name: torch.stack([o.received[name] for o in seen]) for name in seen[0].received}
    guess = 1 - batch.inputs
    joint = RoundsLoss(tuple(losses))(guess, batch.labels, stacked)
    pairs = zip(losses, seen, strict=True)
    alone = [loss(guess, batch.labels, one.received) for loss, one in pairs]
    torch.testing.assert_close(joint, torch.stack(alone).mean())
    assert len({round(float(value), 6) for value in alone}) == 3


def test_a_guess_uses_the_past_alone(victim: Victim, pictures: Pictures) -> None:
    task, seen = rounds(victim, pictures(2, 6, 1, size=8), 3, noise=0.01)
    whole = attack(task, seen, steps=6)
    for known in (1, 2):
        for guess, later in zip(attack(task, seen[:known], steps=6), whole, strict=False):
            assert torch.equal(guess.guess.inputs, later.guess.inputs)
            assert guess.objective == later.objective
    single = Inverting(steps=6).reconstruct(seen[:1], task, [rng(1)], Job())[0]
    assert torch.equal(single.guess.inputs, whole[0].guess.inputs)
    recovered = Inverting(steps=6).reconstruct(seen[2:], task, [rng(3)], Job())[0]
    assert not torch.allclose(recovered.guess.inputs, whole[2].guess.inputs, atol=1e-3)


@pytest.mark.slow
def test_noise_averages_out(victim: Victim, pictures: Pictures) -> None:
    batch = pictures(1, 6, size=8)
    inverting = Inverting(steps=60, total_variation=0.0)
    task, seen = rounds(victim, batch, 6, noise=0.03)
    victims = [inverting._victims([one], task, [rng()], Job()) for one in seen]
    alone = [error(inverting.search(one, task)[0], batch) for one in victims]
    together = inverting.search(joined(victims, victims[0].labels), task)[0]
    # 0.018 against 0.09 of the rounds alone; 0.017 without noise.
    assert error(together, batch) < 0.8 * sum(alone) / len(alone)


def test_rows_that_may_differ_are_attacked_round_by_round(
    victim: Victim, pictures: Pictures
) -> None:
    task, seen = rounds(victim, pictures(1, 6, size=8), 2, all_rows=None)
    guesses = attack(task, seen, steps=4)
    assert [guess.note for guess in guesses] == [ALONE, ALONE]
    for guess, one in zip(guesses, seen, strict=True):
        recovered = Inverting(steps=4).reconstruct([one], task, [rng(one.key.round)], Job())[0]
        assert torch.equal(guess.guess.inputs, recovered.guess.inputs)
    assert [guess.note for guess in attack(task, seen[:1], steps=1)] == [""]
    together = attack(task, rounds(victim, pictures(1, 6, size=8), 2)[1], steps=1)
    assert [guess.note for guess in together] == ["", ""]


def read(task: Task, seen: list[Observation]) -> list[VictimGroup]:
    inverting = Inverting()
    return [inverting._victims([observation], task, [rng()], Job()) for observation in seen]


def test_one_example_has_the_label_of_the_mean_gradient(victim: Victim, pictures: Pictures) -> None:
    task, seen = rounds(victim, pictures(1, 6, size=8), 4)
    bias = find_head(task.build()).bias
    assert bias is not None
    # Each round hides the class behind one of its own; their mean does not.
    for hidden, one in enumerate(seen):
        one.received[bias][hidden] = -1.2
    victims = read(task, seen)
    assert [int(one.labels) for one in victims] == [0, 1, 2, 3]
    assert common_labels(victims[:1], task).tolist() == [[0]]
    assert common_labels(victims, task).tolist() == [[6]]


def test_several_examples_have_the_mean_of_the_counts(victim: Victim, pictures: Pictures) -> None:
    task, seen = rounds(victim, pictures(3, 6, 6, 1, size=8), 3)
    first, second, third = read(task, seen)
    granted = torch.tensor([[1, 6, 6]])
    victims = [
        replace(first, labels=granted),
        replace(second, labels=torch.tensor([[1, 1, 6]])),
        replace(third, labels=granted),
    ]
    assert common_labels(victims, task).tolist() == [[1, 6, 6]]
    assert joined(victims, granted).labels.tolist() == [[1, 6, 6]]


def test_granted_labels_are_not_inferred(victim: Victim, pictures: Pictures) -> None:
    task, seen = rounds(victim, pictures(1, 6, size=8), 2, labels=(3,))
    assert [guess.guess.labels.tolist() for guess in attack(task, seen, steps=1)] == [[3], [3]]


def test_after_the_budget_the_last_guess_stays(victim: Victim, pictures: Pictures) -> None:
    task, seen = rounds(victim, pictures(1, 6, size=8), 3)
    guesses = attack(task, seen, Job(deadline=time.monotonic()), steps=50)
    assert [guess.expired for guess in guesses] == [True] * 3
    for guess in guesses[1:]:
        assert torch.equal(guess.guess.inputs, guesses[0].guess.inputs)


@pytest.mark.slow
def test_a_generator_is_searched_over_rounds_too(victim: Victim, pictures: Pictures) -> None:
    task, seen = rounds(victim, pictures(1, 6, size=8), 2, noise=0.01)
    gi_gip = GIGIP(latent=4, latent_steps=3, weight_steps=2, over_rounds=True)
    rows = pictures(20, *[0] * 20, size=8, seed=9)
    learned = gi_gip.prepare(seen[0], task, Job(auxiliary=lambda: rows), 0)
    first, second = gi_gip.reconstruct(seen, task, [rng(1), rng(2)], Job(prepared=learned))
    job = Job(prepared=learned)
    (alone,) = replace(gi_gip, over_rounds=False).reconstruct(seen[:1], task, [rng(1)], job)
    assert torch.equal(first.guess.inputs, alone.guess.inputs)
    pairs = [(matching_loss(replay(one, task, CPU), one, adaptive=False), one) for one in seen]
    losses = [loss(second.guess.inputs, second.guess.labels, one.received) for loss, one in pairs]
    assert second.objective == pytest.approx(float(sum(losses)) / 2, rel=1e-4)


@pytest.mark.parametrize("option", [{}, {"adaptive": True}, {"restarts": 2}])
def test_options_work_together(victim: Victim, pictures: Pictures, option: dict[str, Any]) -> None:
    defense = ({"name": "prune", "fraction": 0.5},)
    task, seen = rounds(victim, pictures(2, 6, 1, size=8), 2, defense=defense)
    for guess in attack(task, seen, steps=2, **option):
        assert guess.objective is not None
        assert guess.objective < 2
        assert guess.guess.inputs.isfinite().all()


def test_the_option_changes_the_grouping() -> None:
    assert Inverting().grouped_by == "same_weights"
    assert Inverting(over_rounds=True).grouped_by == "same_client"
