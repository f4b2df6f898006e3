"""Images from running statistics: what is simulated is what comes back, and who is refused."""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch

from attacks.learned.learner import Learner
from attacks.learned.lti import LTI
from attacks.learned.ridge import Ridge
from attacks.learned.simulated_statistics import SimulatedStatistics
from attacks.learned.statistics import KernelRegression, Statistics, learn_scales
from fedsim.errors import CannotAttack
from fedsim.store.capture import Observation
from fedsim.tasks.base import Task, state
from fedsim.types import Batch, Tensors
from tests.attacks.learned.cases import owning, rng
from tests.attacks.normalised import normalised, summed, train_client

CPU = torch.device("cpu")
Victim = Callable[..., tuple[Task, Observation]]


@pytest.fixture(scope="module")
def trained(rows: Batch) -> tuple[Task, Tensors]:
    """The task, and weights after some steps of Adam in train mode on other rows."""
    task, sent = normalised()
    network = task.model(sent).train()
    optimizer = torch.optim.Adam(network.parameters(), 1e-2)
    for step in range(150):
        optimizer.zero_grad()
        task.loss(network, rows[torch.arange(20 * (step % 5), 20 * (step % 5) + 20)]).backward()
        optimizer.step()
    with torch.no_grad():
        right = network.eval()(rows[100:].inputs).argmax(1) == rows[100:].labels
    assert float(right.float().mean()) > 0.9
    return task, state(network)


@pytest.mark.some(3)
@pytest.mark.parametrize("momentum", [0.1, None])
@pytest.mark.parametrize(
    ("plan", "tables"),
    [
        ([(0, 1, 2)], ()),
        ([(0, 1), (2, 3), (4,)], ()),
        ([(0, 1), (2, 3), (0, 1), (2, 3), (0, 1)], ()),
        ([(0, 1, 2)], ({"name": "prune", "fraction": 0.5, "stage": "sample"},)),
        ([(0, 1), (2, 3)], ({"name": "prune", "fraction": 0.5, "stage": "sample"},)),
    ],
)
def test_what_is_simulated_is_what_comes_back(
    rows: Batch,
    momentum: float | None,
    plan: Sequence[tuple[int, ...]],
    tables: tuple[dict[str, object], ...],
) -> None:
    task, sent = normalised(momentum)
    count = 1 + max(row for step in plan for row in step)
    seen = train_client(task, sent, rows[:count], plan, *tables, protocol="fedavg")
    client = SimulatedStatistics.of(seen, task, CPU)
    own = client(rows[:count].inputs, 0)
    assert own.shape == (1, sum(client.groups)) == (1, 2 * (8 + 12))
    torch.testing.assert_close(own[0], client.observed(seen), rtol=1e-3, atol=1e-3)
    other = client(rows[count : 2 * count].inputs, 0)
    assert float((other - own).abs().max()) > 0.1


def test_a_cohort_sends_the_mean_of_its_clients(rows: Batch) -> None:
    task, sent = normalised()
    seen = summed([train_client(task, sent, rows[2 * i : 2 * i + 2]) for i in range(3)])
    client = SimulatedStatistics.of(seen, task, CPU)
    assert (client.spread.clients, client.spread.rows) == (3, 2)
    own = client(rows[:12].inputs, 0)
    torch.testing.assert_close(own[0], client.observed(seen), rtol=1e-3, atol=1e-3)
    assert len(own) == 2


def reconstruct(
    task: Task, sent: Tensors, victims: Sequence[Batch], public: Batch, *tables: dict[str, object]
) -> tuple[torch.Tensor, float, str]:
    """The guesses of clients with these batches, one after another, the objective and the note."""
    seen = [train_client(task, sent, batch, None, *tables) for batch in victims]
    attack = Statistics()
    prepared = attack.prepare(seen[0], task, owning(public), 0)
    job = replace(owning(public), prepared=prepared)
    recovered = attack.reconstruct(seen, task, [rng()] * len(seen), job)
    assert recovered[0].objective is not None
    return (
        torch.cat([one.guess.inputs for one in recovered]),
        recovered[0].objective,
        recovered[0].note,
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "tables", [(), ({"name": "gaussian_noise", "std": 0.1},), ({"name": "sign", "scale": "mean"},)]
)
def test_single_images_come_back_from_a_trained_network_under_any_defense(
    trained: tuple[Task, Tensors], rows: Batch, tables: tuple[dict[str, object], ...]
) -> None:
    private, public = rows[270:], rows[100:270]
    guesses, objective, note = reconstruct(
        *trained, [private[i] for i in range(30)], public, *tables
    )
    error = (guesses - private.inputs).square().flatten(1).mean(1)
    blind = (public.inputs.mean(0) - private.inputs).square().flatten(1).mean(1)
    other = (guesses.roll(1, 0) - private.inputs).square().flatten(1).mean(1)
    assert float(error.mean()) < 0.25 * float(blind.mean())
    assert float(other.mean()) > float(blind.mean())
    assert objective == pytest.approx(float(error.mean()), rel=0.5)
    assert note == ""


@pytest.mark.slow
def test_of_a_batch_its_mean_image_comes_back(trained: tuple[Task, Tensors], rows: Batch) -> None:
    private, public = rows[260:], rows[100:260]
    order = torch.randperm(40, generator=rng())  # in a row, four images have one of each class
    victims = [private[order[4 * i : 4 * i + 4]] for i in range(10)]
    guesses, _, note = reconstruct(*trained, victims, public)
    assert note == "each image is guessed by the batch's mean image"
    truth = torch.stack([batch.inputs.mean(0) for batch in victims])
    assert torch.equal(guesses[::4], guesses[3::4])
    error = float((guesses[::4] - truth).square().mean())
    assert error < 0.5 * float((public.inputs.mean(0) - truth).square().mean())
    other = float((guesses[::4].roll(1, 0) - truth).square().mean())
    assert other > float((public.inputs.mean(0) - truth).square().mean())


def test_features_that_say_nothing_give_the_mean(rows: Batch) -> None:
    draw = rng(3)
    features, values = torch.randn(150, 30, generator=draw), torch.rand(150, 12, generator=draw)
    scales = learn_scales(features[:100], values[:100], [10, 20])
    fitted = KernelRegression.fit(scales, features[:100], values[:100])
    guesses = fitted(features[100:])
    error = float((guesses - values[100:]).square().mean())
    assert error < 1.1 * float((values[:100].mean(0) - values[100:]).square().mean())


def test_the_leave_one_out_error_is_that_of_fits_without_each_update() -> None:
    draw = rng(4)
    features = torch.randn(40, 6, generator=draw)
    values = torch.cat([features[:, :2].sin(), features[:, :1] * features[:, 1:2]], 1)
    scales = learn_scales(features, values, [2, 4])
    weights = (scales.scale * features.std(0)).square() * torch.tensor([2, 2, 4, 4, 4, 4])
    assert float(weights[0]) > 10 * float(weights[5])
    centred = values - values.mean(0)
    errors = []
    for i in range(40):
        others = torch.arange(40) != i
        fitted = KernelRegression.fit(scales, features[others], centred[others])
        # The mean is that of all in the closed form.
        points = (features - scales.mean) * scales.scale
        kernel = (-torch.cdist(points, points).square()).exp()
        inner = kernel[others][:, others] + scales.penalty * torch.eye(39)
        guess = kernel[i, others] @ torch.linalg.solve(inner, centred[others])
        assert torch.allclose(fitted(features[i][None])[0], guess, atol=0.2)
        errors.append((guess - centred[i]).square().mean())
    assert float(torch.stack(errors).mean()) == pytest.approx(scales.error, rel=1e-2)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("attack", "bound"),
    [
        (Ridge(), 0.75),
        (LTI(width=64, epochs=32, updates=32), 0.95),
    ],
    ids=["ridge", "lti"],
)
def test_the_learners_of_updates_gain_by_statistics(
    trained: tuple[Task, Tensors], rows: Batch, attack: Learner, bound: float
) -> None:
    """Ratios of three seeds under two instruction sets: .40 to .51 by ridge, .77 to .87 by lti.

    After 4 epochs, of up to 32, lti's were .92 to 1.04: by rounding, as its training had not ended.
    """
    task, sent = trained
    noise: dict[str, object] = {"name": "gaussian_noise", "std": 0.1}
    private, public = rows[270:], rows[100:270]
    errors, features = {}, {}
    for statistics, kept in ((False, "sent"), (True, "kept"), (True, "sent")):
        seen = [
            train_client(task, sent, private[i], None, noise, batch_statistics=kept)
            for i in range(30)
        ]
        learner = replace(attack, statistics=statistics)
        prepared = learner.prepare(seen[0], task, owning(public), 0)
        job = replace(owning(public), prepared=prepared)
        recovered = learner.reconstruct(seen, task, [rng()] * 30, job)
        guesses = torch.cat([one.guess.inputs for one in recovered])
        errors[statistics, kept] = float((guesses - private.inputs).square().mean())
        features[statistics, kept] = int(prepared["inputs"])
    assert errors[True, "sent"] < bound * errors[False, "sent"]
    assert features[True, "sent"] == features[False, "sent"] + 40
    assert errors[True, "kept"] == errors[False, "sent"]  # none came, and none is missed


def refused(task: Task, seen: Observation, public: Batch, reason: str) -> None:
    with pytest.raises(CannotAttack, match=re.escape(reason)):
        Statistics().prepare(seen, task, owning(public), 0)


def test_clients_that_give_no_statistics_are_refused(victim: Victim, rows: Batch) -> None:
    task, sent = normalised()
    observation = train_client(task, sent, rows[:2], batch_statistics="kept")
    refused(task, observation, rows, "kept its running statistics (batch_statistics = 'kept')")
    blind = observation.knowledge.model_copy(update={"train_mode": None})
    refused(task, replace(observation, knowledge=blind), rows, "batch_statistics = 'kept'")
    still = train_client(task, sent, rows[:2], train_mode=False)
    refused(task, still, rows, "the client was in evaluation mode")
    buffers = {name: value for name, value in sent.items() if name not in still.received}
    foreign = replace(observation, received=still.received | buffers)  # unchanged, yet sent
    refused(task, foreign, rows, "the client was in evaluation mode")
    lenet, seen = victim(rows[:1], classes=4)
    refused(lenet, seen, rows, "no normalisation layer that keeps running statistics")


def test_updates_whose_batches_are_not_known_are_refused(rows: Batch) -> None:
    task, sent = normalised()
    seen = train_client(task, sent, rows[:4], [(0, 1), (2, 3)], protocol="fedavg")
    facts = seen.knowledge.model_copy(update={"batch_size": None})
    refused(task, replace(seen, knowledge=facts), rows, "how 4 images were spread over 1 clients")
    counted = {**seen.received, "1.num_batches_tracked": sent["1.num_batches_tracked"] + 3}
    refused(task, replace(seen, received=counted), rows, "batches in 2 local steps of 4 images")
    refused(task, seen, rows[:7], "7 auxiliary rows are too few for two batches of 4")


def test_another_number_of_images_is_not_what_was_learned_from(
    trained: tuple[Task, Tensors], rows: Batch
) -> None:
    task, sent = trained
    pair, single = (train_client(task, sent, rows[:count]) for count in (2, 1))
    job = owning(rows[100:110])
    prepared = replace(job, prepared=Statistics().prepare(pair, task, job, 0))
    with pytest.raises(CannotAttack, match=re.escape("is not what was learned from: (2, 1, 40)")):
        Statistics().reconstruct([single], task, [rng()], prepared)
