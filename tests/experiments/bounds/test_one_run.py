"""Lower bounds on epsilon against closed forms and simulated mechanisms."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

import numpy as np
import pytest
import torch
from scipy.stats import binom, norm

from clients.train import LocalTrainer
from experiments.bounds.audit import Auditor, Sampler
from experiments.bounds.one_run import CanaryTrial, Claim, any_bound, gaussian_bound
from fedsim.accountant import noise_multiplier
from fedsim.canaries import Canaries
from fedsim.config.cell import TaskConfig
from fedsim.config.federation import FederationConfig
from fedsim.defenses.budget import Budgeted
from fedsim.defenses.chain import Chain
from fedsim.defenses.dp_client import DpClient
from fedsim.defenses.dp_sgd import DpSgd
from fedsim.defenses.gaussian_noise import GaussianNoise
from fedsim.local.steps import schedule
from fedsim.magnitudes import cut
from fedsim.tasks import initial_weights, make_task
from fedsim.types import Rows, Tensors

DELTA = 1e-5


def simulated(claim: Claim, canaries: int, seed: int, noise: float = 1.0) -> CanaryTrial:
    rng = np.random.default_rng(seed)
    coins = rng.random(canaries) < 0.5
    shape = (canaries, claim.steps)
    inside = coins[:, None] & (rng.random(shape) < claim.rate)
    places = rng.random(canaries) / claim.rate
    return CanaryTrial(rng.normal(0, noise * claim.noise, shape) + inside, coins, places)


def claim_of(epsilon: float, steps: int = 4, rate: float = 1.0) -> Claim:
    noise = noise_multiplier(steps=steps, rate=rate, target=epsilon, delta=DELTA)
    return Claim(steps, rate, noise, DELTA)


@pytest.mark.parametrize("alarms", [0.01, 0.3])
def test_the_trade_off_curve_has_its_closed_form_where_every_step_samples(alarms: float) -> None:
    closed = norm.cdf(norm.isf(alarms) - 1)  # two standard deviations, four releases
    assert Claim(4, 1 - 1e-9, 2.0, DELTA).misses(alarms) == pytest.approx(closed, abs=2e-3)
    assert Claim(4, 0.1, 2.0, DELTA).misses(alarms) > closed


@pytest.mark.slow
@pytest.mark.parametrize(("rate", "steps"), [(1.0, 4), (0.1, 20)])
def test_bounds_hold_in_200_simulations(rate: float, steps: int) -> None:
    claim = claim_of(4.0, steps, rate)
    for bound in (gaussian_bound, any_bound):
        found = [bound(simulated(claim, 300, seed), claim) for seed in range(200)]
        assert sum(one > claim.epsilon for one in found) <= binom.isf(1e-3, 200, 0.05)
        assert max(found) > 0.1 * claim.epsilon


@pytest.mark.some(9)
@pytest.mark.parametrize("error", [0.05, 0.003])
@pytest.mark.parametrize("epsilon", [1.0, 4.0, 8.0, 16.0])
def test_the_bound_holds_and_half_of_epsilon_is_found(epsilon: float, error: float) -> None:
    claim = claim_of(epsilon)
    trials = [simulated(claim, claim.enough(error), seed) for seed in range(200)]
    found = [gaussian_bound(trial, claim, 1 - error) for trial in trials]
    assert sum(one > claim.epsilon for one in found) <= binom.isf(1e-3, 200, error)
    assert sum(one < epsilon / 2 for one in found) <= binom.isf(1e-3, 200, 0.01)


@pytest.mark.slow
def test_null_scores_give_no_bound() -> None:
    claim = claim_of(4.0)
    rng = np.random.default_rng(0)
    found = []
    for _ in range(100):
        scores = rng.normal(0, claim.noise, (200, claim.steps))
        trial = CanaryTrial(scores, rng.random(200) < 0.5, np.zeros(200))
        found.append(max(gaussian_bound(trial, claim), any_bound(trial, claim)))
    assert sum(one > 0 for one in found) <= 10  # 5 % for each of the two


def test_all_guesses_right_without_delta() -> None:
    coins = np.arange(100) % 2 == 0
    trial = CanaryTrial(np.where(coins, 1.0, 0.0)[:, None], coins, np.zeros(100))
    claim = Claim(1, 1.0, 1e-3, 1e-30)
    # The probability that all guesses are right is (1 + exp(-epsilon)) ** -guesses.
    error = 0.05 / 3
    assert any_bound(trial, claim) == pytest.approx(-math.log(error ** (-1 / 100) - 1), rel=1e-6)


CONFIG = TaskConfig(model="lenet", dataset="shapes")
ROWS = Rows(torch.arange(12 * 64).reshape(12, 1, 8, 8).byte(), torch.arange(12) % 3, (*range(12),))
TASK = make_task(CONFIG, ROWS)
SENT = initial_weights(TASK, CONFIG, 0)
SHAPES = {name: value.shape for name, value in SENT.items()}


SEEDS = [range(2), pytest.param(range(2, 10), marks=pytest.mark.slow)]


class HalfTheNoise(DpSgd):
    def on_sum(self, total: Tensors, rng: torch.Generator) -> Tensors:
        return GaussianNoise(std=self._multiplier() * self.clip / 2).transform(total, rng)


class TheSameNoise(DpSgd):
    def on_sum(self, total: Tensors, rng: torch.Generator) -> Tensors:
        return super().on_sum(total, torch.Generator().manual_seed(1))


class ClippedMean(DpSgd):
    """As ``clip_grad_norm_`` on the gradient of the batch, which is then multiplied by its size."""

    summed: ClassVar[list[int]] = []

    def on_gradient(self, gradient: Tensors, rng: torch.Generator) -> Tensors:
        self.summed.append(1)
        return gradient

    def on_sum(self, total: Tensors, rng: torch.Generator) -> Tensors:
        count = len(self.summed)
        self.summed.clear()
        return super().on_sum(cut(total, count * self.clip), rng)


class HalfTheClientNoise(DpClient):
    def on_update(self, update: Tensors, rng: torch.Generator) -> Tensors:
        small = GaussianNoise(std=self._multiplier() * self.clip / 2)
        return small.transform(cut(update, self.clip), rng)


def in_order(
    config: FederationConfig, seed: int, count: int, round_: int, client: int
) -> Sequence[Sequence[int]]:
    """Batch after batch through the rows as they are, without any draw."""
    start = config.batch_size * (round_ - 1)
    return [[(start + i) % count for i in range(config.batch_size)]]


def trial(
    defense: Budgeted,
    seed: int,
    *,
    size: int = 12,
    rounds: int = 2,
    sample: Sampler = schedule,
    canaries: int = 200,
) -> CanaryTrial:
    federation = FederationConfig(batch_size=size, rounds=rounds)
    chain = Chain(("defense",), (defense,))
    trainer = LocalTrainer(TASK, federation, chain, seed, torch.device("cpu"))
    return Auditor(trainer, defense, ROWS, lambda _: SENT, sample).trial(SHAPES, canaries, 0, 4)


@pytest.mark.slow
@pytest.mark.parametrize("adjacency", ["replace", "zero_out"])
def test_without_noise_scores_are_the_coins_for_updates(adjacency: str) -> None:
    planted = trial(DpClient(clip=0.5, noise_multiplier=0.0, adjacency=adjacency), 0)  # type: ignore[arg-type]
    np.testing.assert_allclose(planted.scores, np.stack([planted.included] * 2, 1), atol=1e-5)


def test_without_noise_scores_are_the_coins_for_examples() -> None:
    planted = trial(DpSgd(clip=0.5, noise_multiplier=0.0), 0)
    # Twelve clipped rows in random directions of 8,000 coordinates are all that disturbs them.
    np.testing.assert_allclose(planted.scores, np.stack([planted.included] * 2, 1), atol=0.7)
    assert planted.shift == pytest.approx(2, abs=0.1)


def test_sampled_scores_tell_the_batches() -> None:
    planted = trial(DpSgd(clip=0.5, noise_multiplier=0.0), 0, size=3, rounds=8)
    taken = (planted.scores > 0.5).mean(1)
    assert taken[~planted.included].max() == 0
    assert taken[planted.included].mean() == pytest.approx(0.25, abs=0.02)


def test_canaries_are_orthogonal_unit_vectors() -> None:
    shapes = {"a": torch.Size([7, 3]), "b": torch.Size([4])}
    canaries = Canaries.draw(shapes, 6, torch.Generator().manual_seed(0))
    products = torch.stack([canaries.products(canaries.gradient(i, 2.0)) for i in range(6)])
    torch.testing.assert_close(products, 2 * torch.eye(6, dtype=torch.float64))
    with pytest.raises(ValueError, match="26 canaries do not fit into 25 coordinates"):
        Canaries.draw(shapes, 26, torch.Generator())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("wrong", "sound"),
    [(HalfTheNoise, DpSgd), (TheSameNoise, DpSgd), (ClippedMean, DpSgd)],
)
def test_a_planted_bug_is_found_each_time(wrong: type[DpSgd], sound: type[DpSgd]) -> None:
    claim = Claim(2, 1.0, 1.2, 1e-5)
    for seed in range(10):
        low = gaussian_bound(trial(wrong(clip=0.5, noise_multiplier=1.2), seed), claim)
        assert low > claim.epsilon
    assert gaussian_bound(trial(sound(clip=0.5, noise_multiplier=1.2), 0), claim) < claim.epsilon


@pytest.mark.parametrize("seeds", SEEDS)
def test_half_the_noise_on_updates_is_found_each_time(seeds: range) -> None:
    claim = Claim(1, 1.0, 0.7, 1e-5)
    for seed in seeds:
        wrong = HalfTheClientNoise(clip=0.5, noise_multiplier=1.4)
        planted = trial(wrong, seed, rounds=1, canaries=150)
        assert gaussian_bound(planted, claim) > claim.epsilon


@pytest.mark.slow
@pytest.mark.parametrize("seeds", SEEDS)
def test_batches_without_a_draw_are_found_each_time(seeds: range) -> None:
    claim, defense = Claim(60, 1 / 12, 1.2, 1e-5), DpSgd(clip=0.5, noise_multiplier=1.2)
    for seed in seeds:
        planted = trial(defense, seed, size=1, rounds=60, sample=in_order, canaries=400)
        assert gaussian_bound(planted, replace(claim, rate=planted.rate)) > claim.epsilon
    sound = trial(defense, 0, size=1, rounds=60, canaries=400)
    assert gaussian_bound(sound, replace(claim, rate=sound.rate)) < claim.epsilon
