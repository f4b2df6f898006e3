"""The likelihood of texts given an update, by which a miss is told from what an update hides."""

import math
from dataclasses import replace

import pytest
import torch

from attacks.base import Job
from attacks.proofs.batch_likelihood import BatchLikelihood
from attacks.span.span import Span
from fedsim.tasks.text import TextTask
from fedsim.types import Batch
from tests.attacks.victims import Victim

NOISE: dict[str, object] = {"name": "gaussian_noise", "std": 1e-5}
TOP: dict[str, object] = {"name": "prune", "fraction": 0.999}
SIGNS: dict[str, object] = {"name": "sign"}


def likelihood(victim: Victim, *defenses: dict[str, object]) -> tuple[BatchLikelihood, Batch]:
    seen, truth = victim.capture([5, 6], *defenses)
    assert isinstance(victim.task, TextTask)
    likelihood = BatchLikelihood.of(seen, victim.task, Job())
    assert likelihood is not None
    return likelihood, truth


def with_two_words_exchanged(batch: Batch) -> Batch:
    inputs = batch.inputs.clone()
    inputs[0, [2, 5]] = inputs[0, [5, 2]]
    labels = batch.labels.clone()
    if labels.dim() == 2:
        labels[0, [2, 5]] = labels[0, [5, 2]]
    return Batch(inputs, labels, batch.mask)


@pytest.mark.some(3)
@pytest.mark.parametrize("defenses", [(), (NOISE,), (TOP,), (SIGNS,)])
@pytest.mark.parametrize("model", ["bert", "gpt2"])
def test_the_private_texts_are_the_likeliest(
    model: str, defenses: tuple[dict[str, object], ...], request: pytest.FixtureRequest
) -> None:
    of, truth = likelihood(request.getfixturevalue(model), *defenses)
    assert of.nats(truth) < of.nats(with_two_words_exchanged(truth)) - 10


@pytest.mark.parametrize("model", ["bert", "gpt2"])
def test_what_pruning_left_is_explained_whole(model: str, request: pytest.FixtureRequest) -> None:
    # A tensor without an entry, or with one in each row, looks as if all of it had been sent.
    of, truth = likelihood(request.getfixturevalue(model), TOP)
    assert of.match.unexplained(truth) < 1e-9


def test_white_noise_counts_by_the_square_that_is_left(gpt2: Victim) -> None:
    of, truth = likelihood(gpt2, NOISE)
    network = gpt2.task.model(gpt2.sent)
    gradient, update = gpt2.task.gradient(network, truth), of.match.update
    both = sum(float((gradient[name].double() * update[name].double()).sum()) for name in update)
    square = sum(float(value.double().square().sum()) for value in gradient.values())
    every = sum(float(value.double().square().sum()) for value in update.values())
    nats = of.match.entries / 2 * math.log(1 - both**2 / square / every)
    assert truth.mask is not None
    loss = gpt2.task.loss(network, truth)
    naming = float(loss.detach()) * int(truth.mask[:, 1:].sum())
    assert of.nats(truth) == pytest.approx(nats + naming, rel=1e-5)


def test_classes_that_are_not_known_are_those_that_fit_best(bert: Victim) -> None:
    of, truth = likelihood(bert)
    unknown = replace(truth, labels=torch.full_like(truth.labels, -1))
    assert of.nats(unknown) == pytest.approx(of.nats(truth), rel=1e-3)


def test_a_mean_over_rounds_is_not_compared(gpt2: Victim) -> None:
    seen, truth = gpt2.capture([5])
    rng = torch.Generator()
    assert Span(over_rounds=True).objectives(seen, gpt2.task, [truth], rng, Job()) is None
    (nats,) = Span().objectives(seen, gpt2.task, [truth], rng, Job()) or []
    assert math.isfinite(nats)
