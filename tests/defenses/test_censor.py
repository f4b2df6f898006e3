"""CENSOR beside its published code."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from attacks.base import Job
from attacks.images.bayes import Bayes
from fedsim.defenses.base import Step
from fedsim.defenses.censor import Censor
from fedsim.types import Batch, Tensors
from tests.defenses.cases import Pictures, Victim, rng


def test_censor_sends_a_direction_of_equal_length_that_lowers_the_loss(
    step: Callable[[int], tuple[Step, Tensors]],
) -> None:
    one, gradient = step(1)
    before = {name: value.clone() for name, value in one.model.named_parameters()}
    # Large steps leave the region where the loss is convex, so that some trial wins.
    trials = [Censor(rate=0.5).on_step(gradient, one, rng(seed)) for seed in range(8)]
    changed = [sent for sent in trials if sent is not gradient]
    assert changed
    for sent in changed:
        for name, value in gradient.items():
            length = float(value.norm())
            assert float(sent[name].norm()) == pytest.approx(length, rel=1e-4)
            assert abs(float((sent[name] * value).sum())) < 1e-4 * length**2
        with torch.no_grad():
            own = float(one.loss(one.model, one.batch))
            for name, value in one.model.named_parameters():
                value.sub_(0.5 * sent[name])
            assert float(one.loss(one.model, one.batch)) < own
            for name, value in one.model.named_parameters():
                value.copy_(before[name])
    assert all(torch.equal(before[k], v) for k, v in one.model.named_parameters())


def test_censor_sends_the_true_gradient_where_no_trial_lowers_the_loss() -> None:
    network = nn.Linear(3, 1, bias=False)
    batch = Batch(torch.randn(4, 3, generator=rng()), torch.zeros(4))
    convex = Step(network, batch, lambda model, data: model(data.inputs).square().mean())
    (slope,) = torch.autograd.grad(convex.loss(network, batch), [network.weight])
    gradient = {"weight": slope}
    assert Censor(rate=0.1, trials=5).on_step(gradient, convex, rng()) is gradient


@pytest.mark.parametrize(("length", "side"), [(0.1, 1), (10.0, -1)])
def test_the_authors_projection_is_orthogonal_at_length_one_only(length: float, side: int) -> None:
    gradient = torch.randn(40, generator=rng(99))
    gradient *= length / gradient.norm()
    authors, exact = Censor(projection="authors"), Censor()
    for seed in range(5):
        drawn = torch.randn(40, generator=rng(seed))
        product = float((authors._trial(gradient, rng(seed)) * gradient).sum())
        assert math.copysign(1, product) == side * math.copysign(1, float((drawn * gradient).sum()))
        assert abs(float((exact._trial(gradient, rng(seed)) * gradient).sum())) < 1e-5 * length**2


@pytest.mark.slow
def test_censor_is_read_where_it_sends_the_truth(victim: Victim, pictures: Pictures) -> None:
    batch = pictures(1, 6)
    task, seen = victim(batch, defense=({"name": "censor"},))
    (recovered,) = Bayes(steps=200, adaptive=True).reconstruct([seen], task, [rng()], Job())
    grey: Tensor = (batch.inputs - 0.5).square().mean()
    assert float((recovered.guess.inputs - batch.inputs).square().mean()) < 0.2 * float(grey)
