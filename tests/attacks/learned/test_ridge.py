"""The ridge regression on slope features: its closed form, and what it recovers."""

import re
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from attacks.learned.inverter import Pixels
from attacks.learned.learner import RidgeRegression
from attacks.learned.ridge import Ridge
from fedsim.errors import CannotAttack
from fedsim.knowledge import Knowledge
from fedsim.store.capture import Observation
from fedsim.tasks.base import Task
from fedsim.types import Batch, Tensors
from tests.attacks.learned.cases import SIGN, client, owning, rng

Victim = Callable[..., tuple[Task, Observation]]


@pytest.mark.parametrize("updates", [12, 60])
def test_the_regression_is_ridge_regression(updates: int) -> None:
    draw = rng(updates)
    network = RidgeRegression(20 + 2, 2, Pixels((1, 1, 3)))
    label = torch.nn.functional.one_hot(torch.arange(updates) % 2, 2).float()
    features = torch.cat([3 + 2 * torch.randn(updates, 20, generator=draw), label], 1)
    truths = features[:, :3] + 0.1 * torch.randn(updates, 3, generator=draw)
    network.standardise(features if updates > 16 else torch.cat([features] * 2))
    with torch.no_grad():
        network.fit((features, truths), (features, truths))
        # The training rows chose, hence the least penalty.
        scaled = torch.cat([_scaled(network, features), label], 1)
        penalty = 1e-4 * updates * torch.eye(22)
        weight = (scaled.T @ scaled + penalty).inverse() @ scaled.T @ (truths - truths.mean(0))
        expected = scaled @ weight + truths.mean(0)
        torch.testing.assert_close(network(features)[:, 0], expected, rtol=0, atol=5e-3)


def test_the_regression_knows_when_noise_hides_everything() -> None:
    draw = rng(5)
    network = RidgeRegression(400 + 2, 2, Pixels((1, 1, 3)))

    def updates(count: int) -> tuple[torch.Tensor, torch.Tensor]:
        label = torch.nn.functional.one_hot(torch.arange(count) % 2, 2).float()
        features = torch.randn(count, 400, generator=draw)
        return torch.cat([features, label], 1), torch.randn(count, 3, generator=draw)

    training, heldout = updates(200), updates(400)
    network.standardise(training[0])
    with torch.no_grad():
        network.fit(training, heldout)
        error = float((network(heldout[0])[:, 0] - heldout[1]).square().mean())
    # A ridge of 0.1 gives 1.6 times the variance.
    assert error < 1.05 * float(heldout[1].var())


def _scaled(network: RidgeRegression, features: Tensor) -> Tensor:
    label = features[:, -2:].argmax(1)
    scaled: Tensor = (features[:, :-2] - network.mean[label]) / network.deviation[label]
    return scaled


PRUNE: dict[str, object] = {"name": "prune", "fraction": 0.9}
NOISE: dict[str, object] = {"name": "gaussian_noise", "std": 0.01}


@pytest.mark.some(4)
@pytest.mark.parametrize(
    ("tables", "bound"), [([], 0.05), ([NOISE], 0.4), ([SIGN], 0.2), ([PRUNE], 0.1)]
)
def test_inverts_updates_of_a_trained_model(
    victim: Victim,
    rows: Batch,
    sent: Callable[..., tuple[Task, Tensors]],
    tables: list[dict[str, object]],
    bound: float,
) -> None:
    task, weights = sent(victim)
    private, public = rows[280:], rows[100:280]
    seen = [client(task, weights, private[i], *tables) for i in range(20)]
    prepared = Ridge().prepare(seen[0], task, owning(public), 0)
    job = replace(owning(public), prepared=prepared)
    recovered = Ridge().reconstruct(seen, task, [rng()] * 20, job)
    guesses = torch.cat([own.guess.inputs for own in recovered])
    error = float((guesses - private.inputs).square().mean())
    mean = float((public.inputs.mean(0) - private.inputs).square().mean())
    assert error < bound * mean
    assert recovered[0].objective == pytest.approx(error, rel=0.5)
    if not tables:
        assert [own.guess.labels.tolist() for own in recovered] == private.labels[:, None].tolist()


def test_several_images_are_not_for_a_regression(victim: Victim, rows: Batch) -> None:
    task, seen = victim(rows[100], classes=4)
    pair = replace(seen, knowledge=Knowledge(num_examples=2))
    reason = (
        "it needs the update of a single image with the last layer's weight and bias, and here 2 "
        "images share one, of which"
    )
    with pytest.raises(CannotAttack, match=re.escape(reason)):
        Ridge(adaptive=False).prepare(pair, task, owning(rows[:60]), 0)
