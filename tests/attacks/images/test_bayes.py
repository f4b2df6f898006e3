"""The likeliest images: the likelihoods, the prior, and what a search of both finds."""

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch.nn.functional import logsigmoid

from attacks.base import Job
from attacks.images.bayes import Bayes
from attacks.images.image_losses import SHARP, matching_loss, rank_surprise, sign_surprise, surprise
from attacks.images.inverting import Inverting
from attacks.observed.distance import cosine_distance
from attacks.observed.pixel_prior import PixelPrior
from attacks.observed.replay import replay
from attacks.solved.closed_form import ClosedForm
from fedsim.store.capture import Observation
from fedsim.tasks.base import Task
from fedsim.types import Batch
from tests.attacks.images.cases import defended, rng

Victim = Callable[..., tuple[Task, Observation]]
Pictures = Callable[..., Batch]


def test_surprise_is_that_of_the_best_scale_and_variance() -> None:
    truth, noise = torch.randn(2, 400, generator=rng()).double()
    observed = 3 * truth + 0.5 * noise
    guess = truth + 0.1 * torch.randn(400, generator=rng(1))
    scale = (guess @ observed) / guess.square().sum()
    variance = (observed - scale * guess).square().mean()
    likeliest = -torch.distributions.Normal(scale * guess, variance.sqrt()).log_prob(observed).sum()
    nothing = -torch.distributions.Normal(0, observed.square().mean().sqrt()).log_prob(observed)
    distance = cosine_distance({"x": guess}, {"x": observed})
    expected = float(likeliest - nothing.sum())
    assert float(surprise(distance, {"x": observed})) == pytest.approx(expected, rel=1e-6)
    opposite = surprise(torch.tensor(2.0), {"x": observed})
    assert opposite > surprise(torch.tensor(1.0), {"x": observed}) == 0


def test_signs_are_as_likely_as_the_gradient_is_clear() -> None:
    guess = torch.tensor([-3.0, -1.0, -0.01, 0.02, 1.0, 2.0])
    seen = torch.tensor([-1.0, 1.0, 1.0, 1.0, 1.0, 0.0])
    width = SHARP * float(guess.abs().median())
    expected = -sum(
        float(logsigmoid(torch.tensor(float(sign) * float(value) / width)))
        for value, sign in zip(guess[:5], seen[:5], strict=True)
    )
    # What was received as 0 has no sign.
    found = float(sign_surprise({"x": guess}, {"x": seen}))
    assert found == pytest.approx(expected, rel=1e-5)
    assert found > 1 / width - math.log(2)


def test_a_rank_that_is_wrong_costs_little_beside_errors_everywhere() -> None:
    truth = torch.randn(200, generator=rng())
    observed = {"x": truth * (truth.abs() > 1)}
    near = 0.5 * truth * (truth.abs() > 1)
    exact = float(rank_surprise({"x": near}, observed))
    wrong = near.clone()
    wrong[observed["x"].abs().argmax()] = 0
    rough = near * (1 + 0.1 * torch.randn(200, generator=rng(1)))
    dropped, noisy = (float(rank_surprise({"x": guess}, observed)) for guess in (wrong, rough))
    assert exact < dropped < noisy
    # By the cosine it is the other way round.
    distances = [float(cosine_distance({"x": guess}, observed)) for guess in (wrong, rough)]
    assert distances[0] > distances[1]
    assert float(rank_surprise({"x": torch.zeros(200)}, observed)) > noisy


def test_images_of_coefficients() -> None:
    prior = PixelPrior.of(torch.rand(30, 3, 8, 6, generator=rng()), (3, 8, 6))
    images = torch.rand(2, 3, 8, 6, generator=rng(1)).double()
    coefficients = prior.coefficients(images)
    torch.testing.assert_close(prior.images(coefficients), images)
    assert float(prior.rarity(images)) == pytest.approx(float(coefficients.square().sum() / 2))


@pytest.mark.slow
def test_recovers_the_images_of_a_batch(victim: Victim, pictures: Pictures) -> None:
    batch = pictures(2, 6, 1)
    task, seen = victim(batch)
    (recovered,) = Bayes(steps=250).reconstruct([seen], task, [rng()], Job())
    assert sorted(recovered.guess.labels.tolist()) == [1, 6]
    order = recovered.guess.labels.argsort(descending=True)
    grey = float((batch.inputs - 0.5).square().mean())
    assert float((recovered.guess.inputs[order] - batch.inputs).square().mean()) < 0.05 * grey
    gradient = replay(seen, task, torch.device("cpu")).pure_gradient(recovered.guess)
    expected = float(cosine_distance(gradient, seen.received))
    assert recovered.objective == pytest.approx(expected, rel=1e-2, abs=1e-7)


@pytest.mark.slow
@pytest.mark.parametrize(
    "defense",
    [
        {"name": "gaussian_noise", "std": 0.1},
        {"name": "sign"},
        {"name": "prune", "fraction": 0.99},
    ],
)
def test_knowing_the_defense_the_update_is_read_as_by_equations(
    victim: Victim, pictures: Pictures, defense: dict[str, object]
) -> None:
    batch, rows = pictures(1, 6), pictures(200, *[0] * 200, seed=9)
    task, seen = defended(victim, batch, (defense,))
    seen = replace(seen, knowledge=seen.knowledge.model_copy(update={"auxiliary": True}))
    job = Job(auxiliary=lambda: rows)

    def error(attack: Bayes | Inverting | ClosedForm) -> float:
        (recovered,) = attack.reconstruct([seen], task, [rng()], job)
        return float((recovered.guess.inputs - batch.inputs).square().mean())

    own = error(Bayes(steps=300, adaptive=True))
    assert own < 1.5 * error(ClosedForm())
    assert own < error(Inverting(steps=300, adaptive=True))


@pytest.mark.slow
@pytest.mark.parametrize(
    "defense",
    [
        {"name": "sign", "stage": "sample"},
        {"name": "prune", "fraction": 0.9, "stage": "sample"},
    ],
)
def test_each_example_of_a_batch_is_defended(
    victim: Victim, pictures: Pictures, defense: dict[str, object]
) -> None:
    batch = pictures(2, 6, 1)
    task, seen = defended(victim, batch, (defense,))
    attack = Bayes(steps=300, adaptive=True)
    errors = {}
    for adaptive in (True, False):
        own = replace(attack, adaptive=adaptive)
        (recovered,) = own.reconstruct([seen], task, [rng()], Job())
        assert sorted(recovered.guess.labels.tolist()) == [1, 6]
        images = recovered.guess.inputs[recovered.guess.labels.argsort(descending=True)]
        errors[adaptive] = float((images - batch.inputs).square().mean())
    assert errors[True] < 0.3 * float((batch.inputs - 0.5).square().mean())
    assert errors[True] < 0.5 * errors[False]


@pytest.mark.slow
@pytest.mark.parametrize(
    "chain",
    [
        ({"name": "sign"}, {"name": "gaussian_noise", "std": 1.0}),
        ({"name": "gaussian_noise", "std": 0.02}, {"name": "sign"}),
    ],
)
def test_noise_about_signs_is_not_fitted(
    victim: Victim, pictures: Pictures, chain: tuple[dict[str, object], ...]
) -> None:
    batch, rows = pictures(1, 6), pictures(200, *[0] * 200, seed=9)
    task, seen = defended(victim, batch, chain)
    seen = replace(
        seen, knowledge=seen.knowledge.model_copy(update={"auxiliary": True, "labels": (6,)})
    )
    attack = Bayes(steps=200, adaptive=True)
    (recovered,) = attack.reconstruct([seen], task, [rng()], Job(auxiliary=lambda: rows))
    error = float((recovered.guess.inputs - batch.inputs).square().mean())
    assert error < 0.3 * float((rows.inputs.mean(0) - batch.inputs).square().mean())


def test_a_guess_stays_within_what_pixels_can_be(victim: Victim, pictures: Pictures) -> None:
    batch = pictures(1, 6)
    saturated = Batch(((batch.inputs - 0.5) * 3 + 0.5).clamp(0, 1), batch.labels)
    assert float(((saturated.inputs == 0) | (saturated.inputs == 1)).float().mean()) > 0.2
    task, seen = defended(victim, saturated, ({"name": "prune", "fraction": 0.9},))
    attack = Bayes(steps=100, adaptive=True)
    (recovered,) = attack.reconstruct([seen], task, [rng()], Job())
    assert 0 <= float(recovered.guess.inputs.min()) <= float(recovered.guess.inputs.max()) <= 1
    loss = matching_loss(replay(seen, task, torch.device("cpu")), seen, adaptive=True)
    again = loss(recovered.guess.inputs, recovered.guess.labels, seen.received)
    assert recovered.objective == pytest.approx(float(again), rel=1e-2, abs=1e-9)


@pytest.mark.slow
def test_the_likeliest_restart_is_guessed(
    victim: Victim, pictures: Pictures, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("attacks.images.image_matching.guarded", lambda found, *_: found)
    task, seen = victim(pictures(2, 6, 6))
    loss = matching_loss(replay(seen, task, torch.device("cpu")), seen, adaptive=False)
    prior = PixelPrior.of(None, (3, 16, 16))

    def cost(attack: Bayes, seed: int) -> float:
        guess = attack.reconstruct([seen], task, [rng(seed)], Job())[0].guess
        surprised = loss.evidence(guess.inputs, guess.labels, seen.received)[1]
        return float(surprised) + float(prior.rarity(guess.inputs))

    short = Bayes(steps=10, learning_rate=0.02)
    pairs = [(cost(replace(short, restarts=4), seed), cost(short, seed)) for seed in range(4)]
    # The first restart is the same search, and not always the best.
    assert all(best <= first + 1 for best, first in pairs)
    assert any(best < first - 1 for best, first in pairs)


@pytest.mark.slow
def test_a_lane_is_one_restart_of_one_victim(victim: Victim, pictures: Pictures) -> None:
    batches = [pictures(1, 6), pictures(1, 2, seed=1), pictures(2, 3, 3, seed=2)]
    seen = [victim(batch, client=i)[1] for i, batch in enumerate(batches)]
    task = victim(batches[0])[0]
    attack = Bayes(steps=10, restarts=2, lanes=3)
    together = attack.reconstruct(seen, task, [rng(i) for i in range(3)], Job())
    for i, recovered in enumerate(together):
        (alone,) = attack.reconstruct([seen[i]], task, [rng(i)], Job())
        torch.testing.assert_close(alone.guess.inputs, recovered.guess.inputs, atol=1e-2, rtol=0)
