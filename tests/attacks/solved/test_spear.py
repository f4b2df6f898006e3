"""Whole batches of trained ReLU networks, exact and with proof; what cannot work is refused."""

import os
import re
import time
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from attacks.base import Job, Reconstruction
from attacks.observed.first_linear import UnitRows, find_first_linear, slopes
from attacks.solved.relu_dictionary import ReluDictionary, find_next_linear
from attacks.solved.signs import Signs
from attacks.solved.sparse_columns import Pool, factor, sparsest
from attacks.solved.spear import Spear
from clients.train import LocalTrainer
from fedsim.config.cell import TaskConfig
from fedsim.config.federation import FederationConfig
from fedsim.data.rows import load_rows
from fedsim.defenses import build_chain
from fedsim.errors import CannotAttack
from fedsim.knowledge import Knowledge
from fedsim.store.capture import CaptureKey, Observation
from fedsim.tasks import initial_weights, make_task
from fedsim.tasks.base import Task, state
from fedsim.tasks.images import ImageClassification
from fedsim.types import Batch, Rows, Tensors
from tests.attacks.images.cases import rng

KEY = CaptureKey(round=1, client=0)
FIRST = "body.1.weight"


@dataclass
class Victim:
    """Clients of one model."""

    task: Task
    rows: Rows
    sent: Tensors

    def capture(
        self, rows: list[int], *defenses: dict[str, object], **federation: Any
    ) -> tuple[Observation, Batch]:
        options: dict[str, Any] = {"batch_size": len(rows), "engine": "in-process", **federation}
        config = FederationConfig(**options)
        chain = build_chain(defenses, "defenses")
        trainer = LocalTrainer(self.task, config, chain, 0, torch.device("cpu"))
        update = trainer.run(self.sent, self.rows.take(rows), 1, 0)
        knowledge = Knowledge(
            num_examples=len(update.batch),
            batch_size=config.batch_size,
            local_steps=len(update.steps),
            learning_rate=config.learning_rate,
            optimizer=config.optimizer,
        )
        return Observation(KEY, self.sent, update.tensors, update.kind, knowledge), update.batch

    def attack(self, seen: Observation, attack: Spear | None = None) -> Reconstruction:
        (guess,) = (attack or Spear(samples=200_000)).reconstruct([seen], self.task, [rng()], Job())
        return guess


def trained(model: str, dataset: str, steps: int) -> Victim:
    rows = load_rows(dataset, "train[:400]", modality="image")
    config = TaskConfig(model=model, dataset=dataset)
    task = make_task(config, rows)
    network = task.model(initial_weights(task, config, 0))
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01)
    data = task.encode(rows)
    for step in range(steps):
        optimizer.zero_grad()
        task.loss(network, data[[(step * 32 + i) % 400 for i in range(32)]]).backward()
        optimizer.step()
    return Victim(task, rows, state(network))


@pytest.fixture(scope="module")
def fresh() -> Victim:
    return trained("mlp", "shapes", 0)


@pytest.fixture(scope="module")
def mlp() -> Victim:
    return trained("mlp", "shapes", 150)


def misses(guess: Batch, truth: Batch) -> tuple[list[float], list[int]]:
    """For each guess the largest error of a pixel, and the private image that it is."""
    distance = torch.cdist(guess.inputs.flatten(1), truth.inputs.flatten(1), p=torch.inf)
    least, which = distance.min(1)
    return least.tolist(), which.tolist()


def exact(guess: Reconstruction, truth: Batch) -> bool:
    """Whether all images are there, to half a byte, with their labels."""
    least, which = misses(guess.guess, truth)
    return (
        sorted(which) == list(range(len(truth)))
        and max(least) < 0.5 / 255
        and torch.equal(guess.guess.labels, truth.labels[which])
    )


def certified(guess: Reconstruction) -> set[str]:
    return set(guess.confidence or ())


@pytest.mark.some(3)
@pytest.mark.parametrize("count", [1, 2, 8])
@pytest.mark.parametrize("weights", ["fresh", "mlp"])
def test_batch_is_exact_and_proven(
    weights: str, count: int, request: pytest.FixtureRequest
) -> None:
    victim: Victim = request.getfixturevalue(weights)
    seen, truth = victim.capture(list(range(40, 40 + count)))
    guess = victim.attack(seen)
    assert exact(guess, truth)
    assert certified(guess) == {"certified"}
    assert guess.objective is not None
    assert guess.objective < 1e-6
    assert not guess.expired
    assert (guess.steps > 0) == (count > 1)


@pytest.mark.slow
def test_a_large_batch_is_found_through_the_activations(mlp: Victim) -> None:
    seen, truth = mlp.capture(list(range(100, 124)))
    guess = mlp.attack(seen, Spear(samples=1))
    assert exact(guess, truth)
    assert certified(guess) == {"certified"}
    # At most one pass of 4,096 submatrices, where sampling alone would need 2^23.
    assert 24 < guess.steps < 2 * 4096


def test_sampling_does_without_the_second_layer(mlp: Victim) -> None:
    seen, truth = mlp.capture(list(range(80, 84)))
    withheld = {name: value for name, value in seen.received.items() if name != "body.3.weight"}
    guess = mlp.attack(replace(seen, received=withheld))
    assert exact(guess, truth)
    assert guess.steps % 4096 == 0


@pytest.mark.some(2)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_coarse_wire_is_no_refusal(fresh: Victim, dtype: torch.dtype) -> None:
    seen, truth = fresh.capture(list(range(40, 46)))
    coarse = {name: value.to(dtype) for name, value in seen.received.items()}
    guess = fresh.attack(replace(seen, received=coarse))
    least, which = misses(guess.guess, truth)
    assert sorted(which) == list(range(6))
    assert max(least) < 0.1
    if dtype == torch.float16:
        assert exact(guess, truth)
        assert certified(guess) == {"certified"}


@pytest.mark.slow
def test_the_number_of_examples_tells_the_rank_under_noise(fresh: Victim) -> None:
    seen, truth = fresh.capture(list(range(70, 78)), {"name": "gaussian_noise", "std": 6e-4})
    guess = fresh.attack(seen, Spear(samples=4096))
    error = torch.cdist(truth.inputs.flatten(1), guess.guess.inputs.flatten(1)).min(1).values
    assert float((error.square() / 3072).median()) < 1e-2
    assert "certified" not in certified(guess)
    refused(fresh, replace(seen, knowledge=Knowledge()), "so its rank is full")


def test_nothing_needs_to_be_known(mlp: Victim) -> None:
    seen, truth = mlp.capture(list(range(50, 55)))
    guess = mlp.attack(replace(seen, knowledge=Knowledge()))
    assert exact(guess, truth)
    assert certified(guess) == {"certified"}


FEDAVG: dict[str, Any] = {"protocol": "fedavg", "learning_rate": 0.01}


@pytest.mark.some(3)
@pytest.mark.parametrize(
    ("federation", "proven"),
    [
        ({"local_steps": 1}, True),
        ({"local_steps": 4}, True),
        # Which examples were used in which order is not known: exact, and not proven.
        ({"local_steps": 2, "batch_size": 2, "learning_rate": 0.001}, False),
    ],
)
def test_weights_instead_of_a_gradient(
    mlp: Victim, federation: dict[str, Any], proven: bool
) -> None:
    seen, truth = mlp.capture([60, 61, 62, 63], **{**FEDAVG, **federation})
    guess = mlp.attack(seen)
    assert exact(guess, truth)
    assert (certified(guess) == {"certified"}) == proven
    assert ("certified" in certified(guess)) == proven


def test_clipping_hides_nothing(mlp: Victim) -> None:
    clip = {"name": "dp_sgd", "clip": 0.5, "noise_multiplier": 0.0}
    seen, truth = mlp.capture([70, 71, 72, 73], clip)
    guess = mlp.attack(seen)
    assert exact(guess, truth)
    assert certified(guess) == {"certified"}


def test_small_noise_leaves_images_but_no_proof(mlp: Victim) -> None:
    seen, truth = mlp.capture([70, 71, 72, 73], {"name": "gaussian_noise", "std": 1e-5})
    guess = mlp.attack(seen)
    assert max(misses(guess.guess, truth)[0]) < 0.05
    assert "certified" not in certified(guess)


def test_an_image_that_stands_twice(mlp: Victim) -> None:
    truth = mlp.task.encode(mlp.rows.take([10, 11, 10, 12]))
    gradient = mlp.task.gradient(mlp.task.model(mlp.sent), truth)
    seen = Observation(KEY, mlp.sent, gradient, "gradient", Knowledge(num_examples=4))
    guess = mlp.attack(seen)
    assert sorted(misses(guess.guess, truth)[1]) == [0, 0, 1, 3]
    assert certified(guess) == {"certified"}


@pytest.mark.some(3)
@pytest.mark.parametrize(("share", "expected"), [(1e-3, 4), (1e-5, 3), (1e-8, 3)])
def test_a_faint_image_has_no_certificate_unless_it_is_exact(
    mlp: Victim, share: float, expected: int
) -> None:
    batch = mlp.task.encode(mlp.rows.take([20, 21, 22, 23]))
    network = mlp.task.model(mlp.sent)
    total: Tensors = {}
    for i, weight in enumerate([1, 1, 1, share]):
        for name, value in mlp.task.gradient(network, batch[i]).items():
            total[name] = total.get(name, 0) + weight * value
    seen = Observation(KEY, mlp.sent, total, "gradient", Knowledge(num_examples=4))
    guess = mlp.attack(seen, Spear(samples=20_000))
    least, which = misses(guess.guess, batch)
    levels = guess.confidence or ()
    assert len(levels) == 4
    proven = [level == "certified" for level in levels]
    assert all(miss < 0.5 / 255 for miss, sure in zip(least, proven, strict=True) if sure)
    assert sum(proven) == expected
    kept = [row for row, label in zip(which, guess.guess.labels, strict=True) if label >= 0]
    assert len(set(kept)) == len(kept)
    assert ("left no independent gradient" in guess.note) == (len(kept) < 4)
    assert "the gradient is 3.00 times that of the loss" in guess.note


def test_time_is_up(mlp: Victim) -> None:
    seen, _ = mlp.capture(list(range(4)))
    job = Job(deadline=time.monotonic())
    (guess,) = Spear().reconstruct([seen], mlp.task, [rng()], job)
    assert (guess.expired, guess.steps, len(guess.guess)) == (True, 0, 4)
    assert bool(guess.guess.inputs.isfinite().all())
    assert certified(guess) == {"guess"}


def refused(victim: Victim, seen: Observation, reason: str) -> None:
    with pytest.raises(CannotAttack, match=re.escape(reason)):
        victim.attack(seen)


@pytest.mark.slow
def test_updates_of_full_rank_are_refused(mlp: Victim) -> None:
    spoilt: list[dict[str, object]] = [{"name": "sign"}, {"name": "prune", "fraction": 0.9}]
    for defense in spoilt:
        seen, _ = mlp.capture(list(range(8)), defense)
        with pytest.raises(CannotAttack, match=r"the (\d+ singular|first layer's update has)"):
            mlp.attack(seen)
    noisy, _ = mlp.capture(list(range(8)), {"name": "gaussian_noise", "std": 0.1})
    refused(mlp, noisy, "consecutive singular values of the first layer's update (256 in all)")
    seen, _ = mlp.capture(list(range(8)))
    fewer = replace(seen, knowledge=Knowledge(num_examples=5))
    refused(mlp, fewer, "has rank 8, as of 8 inputs, and num_examples is 5.")
    still = {name: torch.zeros_like(value) for name, value in seen.received.items()}
    refused(mlp, replace(seen, received=still), "the first layer's update is zero.")


def test_broken_updates_are_refused(mlp: Victim) -> None:
    seen, _ = mlp.capture([0])
    broken = {**seen.received, FIRST: torch.full_like(seen.received[FIRST], torch.nan)}
    refused(mlp, replace(seen, received=broken), f"the update of {FIRST!r} holds NaN or infinite")
    absent = {name: value for name, value in seen.received.items() if name != FIRST}
    refused(mlp, replace(seen, received=absent), f"{FIRST!r} was not sent")


class Custom(ImageClassification):
    """An image task with another network."""

    def build(self) -> nn.Module:
        layers: dict[str, list[nn.Module]] = {
            "sigmoid": [nn.Linear(3072, 16), nn.Sigmoid(), nn.Linear(16, 10)],
            "linear": [nn.Linear(3072, 10)],
            "no-bias": [nn.Linear(3072, 16, bias=False), nn.ReLU(), nn.Linear(16, 10)],
            "shifted": [nn.BatchNorm1d(3072), nn.Linear(3072, 16), nn.ReLU(), nn.Linear(16, 10)],
            "squashed": [nn.Sigmoid(), nn.Linear(3072, 16), nn.ReLU(), nn.Linear(16, 10)],
            "scaled": [nn.Linear(3072, 16), nn.ReLU(), nn.LayerNorm(16), nn.Linear(16, 10)],
            "relu": [nn.Linear(3072, 16), nn.ReLU(), nn.Linear(16, 10)],
        }
        torch.manual_seed(0)
        return nn.Sequential(nn.Flatten(), *layers[self.spec.model]).eval()


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        ("sigmoid", "'1' of Sequential is not followed by ReLU"),
        ("linear", "'1' of Sequential is not followed by ReLU"),
        ("no-bias", "'1' of Sequential has no bias"),
        ("squashed", "Sequential has no linear layer that takes the pixels as they"),
        ("relu", ""),
        ("shifted", ""),
    ],
)
def test_the_first_layer_is_found_by_what_it_does(mlp: Victim, model: str, reason: str) -> None:
    task = Custom(mlp.task.spec.model_copy(update={"model": model}))
    network = task.build()
    if not reason:
        first_linear = find_first_linear(network, task, rng())
        name = "2" if model == "shifted" else "1"
        assert (first_linear.module, first_linear.weight, first_linear.bias) == (
            name,
            f"{name}.weight",
            f"{name}.bias",
        )
        return
    with pytest.raises(CannotAttack, match=re.escape(reason)):
        find_first_linear(network, task, rng())


def test_convolutions_are_refused() -> None:
    victim = trained("lenet", "shapes", 0)
    seen, _ = victim.capture([0])
    refused(victim, seen, "LeNet has no linear layer that takes the pixels as they are")


def synthetic(count: int = 4, units: int = 60) -> tuple[Tensor, Tensor, nn.Linear]:
    """Inputs in [0, 1], slopes that ReLU cuts, and the layer that did."""
    inputs = torch.rand(count, 30, generator=rng(1), dtype=torch.float64)
    layer = nn.Linear(30, units).double()
    with torch.no_grad():
        layer.weight.copy_(torch.randn(units, 30, generator=rng(2), dtype=torch.float64))
        layer.bias.zero_()
        active = layer(inputs) > 0
    return inputs, torch.randn(count, units, generator=rng(3), dtype=torch.float64) * active, layer


def test_factors_come_back_from_their_product() -> None:
    inputs, cut, layer = synthetic()
    matrix = cut.T @ torch.cat([inputs, torch.ones(4, 1, dtype=torch.float64)], 1)
    factors = factor(UnitRows(matrix, *torch.full((2, 60), 1e-16, dtype=torch.float64)), None)
    assert factors.rank == 4
    truth = cut[:, factors.live] @ factors.left
    found, observed = factors.unmix(torch.nn.functional.normalize(truth, dim=1))
    torch.testing.assert_close(found, inputs)
    torch.testing.assert_close(observed, cut[:, factors.live])
    alike = torch.nn.functional.normalize(truth, dim=1)[[0, 1, 2, 2]]
    assert all(part.isfinite().all() for part in factors.unmix(alike))  # no inverse
    signs = Signs(factors, layer)
    directions = torch.nn.functional.normalize(truth, dim=1)
    assert signs.agreement(directions).tolist() == [1.0] * 4
    wrong = torch.nn.functional.normalize(directions.roll(1, 0) + directions, dim=1)
    assert float(signs.agreement(wrong).max()) < 0.9
    pool = Pool(factors, signs.quiet())
    assert pool.sample(2000, rng())
    columns, agreement = signs.best(pool)
    assert agreement == 1.0
    same = (columns @ directions.T).abs().max(0).values
    torch.testing.assert_close(same, torch.ones_like(same))


def test_activations_are_rays_of_the_cone() -> None:
    inputs, cut, layer = synthetic(8)
    ones = torch.ones(8, 1, dtype=torch.float64)
    matrix = cut.T @ torch.cat([inputs, ones], 1)
    factors = factor(UnitRows(matrix, *torch.full((2, 60), 1e-16, dtype=torch.float64)), None)
    with torch.no_grad():
        before = layer(inputs)
    gradient = torch.randn(20, 8, generator=rng(4), dtype=torch.float64) @ before.relu()
    dictionary = ReluDictionary(factors, layer, gradient)
    found = {tuple(mask.tolist()) for mask in dictionary.silent(rng(), Job())}
    assert found == {tuple(mask.tolist()) for mask in (before <= 0)[:, factors.live]}
    assert dictionary.programs >= 8
    assert not list(dictionary.silent(rng(), Job(deadline=time.monotonic())))


def test_the_layer_that_takes_the_activations(mlp: Victim) -> None:
    network = mlp.task.model(mlp.sent)
    layer = find_first_linear(network, mlp.task, rng())
    assert find_next_linear(network, mlp.task, layer, rng()) == "body.3.weight"
    task = Custom(mlp.task.spec.model_copy(update={"model": "relu"}))
    network = task.build()
    layer = find_first_linear(network, task, rng())
    assert find_next_linear(network, task, layer, rng()) == "3.weight"
    task = Custom(mlp.task.spec.model_copy(update={"model": "scaled"}))
    assert find_next_linear(task.build(), task, layer, rng()) is None


def test_a_direction_that_is_silent_nowhere_is_dropped() -> None:
    inputs, cut, layer = synthetic()
    matrix = cut.T @ torch.cat([inputs, torch.ones(4, 1, dtype=torch.float64)], 1)
    factors = factor(UnitRows(matrix, *torch.full((2, 60), 1e-16, dtype=torch.float64)), None)
    pool = Pool(factors, Signs(factors, layer).quiet())
    active = cut[:, factors.live] != 0
    nowhere = torch.zeros_like(active[:1])
    assert not pool.offer(nowhere)
    assert pool.offer(torch.cat([nowhere, ~active]))
    assert sorted(pool.silent.tolist()) == sorted((~active).sum(1).tolist())


def test_spread_is_that_of_the_noise() -> None:
    inputs, cut, _ = synthetic()
    matrix = cut.T @ torch.cat([inputs, torch.ones(4, 1, dtype=torch.float64)], 1)
    noise = torch.full((60,), 1e-6, dtype=torch.float64)
    factors = factor(UnitRows(matrix, noise, 0 * noise), None)
    slopes_ = cut[:, factors.live]
    errors = [
        torch.linalg.pinv(slopes_.T)
        @ (1e-6 * torch.randn(slopes_.shape[1], 30, generator=rng(i))).double()
        for i in range(50)
    ]
    measured = torch.stack(errors).square().mean((0, 2)).sqrt()
    torch.testing.assert_close(factors.spread(slopes_), measured, rtol=0.1, atol=0)


def test_independent_directions_come_before_sparser_mixtures() -> None:
    eye = torch.eye(3, dtype=torch.float64)
    mixed = [(eye[0] + weight * eye[1]) / (1 + weight**2) ** 0.5 for weight in (1.0, 2.0, 3.0)]
    directions = torch.stack([eye[0], eye[1], *mixed, eye[2]])
    silent = torch.tensor([90, 80, 70, 70, 70, 20])
    assert sparsest(directions, silent, 1 - 1e-5, 4) == ([0, 1, 5, 2], 3)
    twice = torch.cat([eye, eye])
    assert sparsest(twice, torch.tensor([1, 2, 3, 2, 1, 0]), 0.9, 9) == ([2, 1, 3], 3)


def test_slopes_are_those_of_single_images(mlp: Victim) -> None:
    network = mlp.task.model(mlp.sent).double()
    layer = find_first_linear(network, mlp.task, rng())
    images = mlp.task.encode(mlp.rows.take([5, 6])).inputs.double()
    found = slopes(network, mlp.task, layer, images)
    for label in (0, 3):
        gradient = mlp.task.gradient(network, Batch(images[1:], torch.tensor([label])))
        torch.testing.assert_close(found[1, label], gradient[layer.bias])


@pytest.mark.slow
@pytest.mark.skipif("FEDSIM_HUB" not in os.environ, reason="FEDSIM_HUB names no folder with CIFAR")
@pytest.mark.parametrize(("steps", "count"), [(0, 8), (150, 8), (150, 12), (0, 32), (150, 32)])
def test_cifar10(steps: int, count: int) -> None:
    victim = trained("mlp", "uoft-cs/cifar10", steps)
    for first in (0, 100, 200):
        seen, truth = victim.capture(list(range(first, first + count)))
        guess = victim.attack(seen, Spear())
        assert exact(guess, truth)
        assert certified(guess) == {"certified"}
