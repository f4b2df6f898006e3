"""Labels and their counts, read exactly from undefended updates."""

import re
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import nn

import fedsim
from attacks.base import Job
from attacks.observed.known_labels import known_labels
from attacks.observed.labels import DUMMIES, count_labels, find_head, infer_label, round_counts
from experiments.captures.update import Update
from fedsim.defenses import build_chain
from fedsim.errors import CannotAttack
from fedsim.magnitudes import squared_norm
from fedsim.store.capture import Observation
from fedsim.tasks.base import Task, state
from fedsim.types import Batch, Tensors

Victim = Callable[..., tuple[Task, Observation]]
Pictures = Callable[..., Batch]
REPEATS = {4: [7, 7, 7, 1], 16: [0, 0, 0, 0, 0, 0, 9, 9, 9, 4, 4, 4, 4, 2, 8, 8]}


def rng() -> torch.Generator:
    return torch.Generator().manual_seed(5)


@pytest.mark.parametrize("label", range(10))
def test_one_label(victim: Victim, pictures: Pictures, label: int) -> None:
    for step_size in (None, 0.1):
        task, seen = victim(pictures(1, label), step_size=step_size)
        head = find_head(task.build())
        assert (head.weight, head.bias) == ("fc.weight", "fc.bias")
        assert infer_label(seen.update(), head) == label


@pytest.mark.parametrize("label", range(4))
def test_one_label_without_bias(label: int) -> None:
    network = nn.Sequential(nn.Tanh(), nn.Linear(5, 4, bias=False))
    softmax, features = torch.tensor([0.4, 0.3, 0.2, 0.1]), torch.tensor([-3.0, 1, -2, 1, 0.5])
    rows = torch.outer(softmax - torch.eye(4)[label], features)
    # The features sum to a negative number, where the shortcut by row sums fails.
    assert rows.sum(1).argmin() != label
    assert infer_label({"1.weight": rows}, find_head(network)) == label


def test_one_label_needs_the_layer() -> None:
    head = find_head(nn.Linear(5, 2, bias=False))
    with pytest.raises(CannotAttack, match=r"2 weight rows without a bias are opposite"):
        infer_label({"weight": torch.ones(2, 5)}, head)
    with pytest.raises(CannotAttack, match=r"'weight' was not sent"):
        infer_label({}, head)
    with pytest.raises(CannotAttack, match=r"the model has no linear layer\."):
        find_head(nn.Conv2d(1, 1, 1))


@pytest.mark.parametrize("step_size", [None, 0.05])
@pytest.mark.parametrize("size", REPEATS)
@pytest.mark.parametrize("seed", range(3))
def test_counts(
    victim: Victim, pictures: Pictures, size: int, seed: int, step_size: float | None
) -> None:
    labels = REPEATS[size]
    task, seen = victim(pictures(size, *labels, size=32, seed=seed), step_size=step_size)
    expected = torch.bincount(torch.tensor(labels), minlength=10)
    assert torch.equal(count_labels(seen, task, size, rng()), expected)
    assert torch.equal(known_labels(seen, task, rng(), Job()), torch.tensor(sorted(labels)))


def test_auxiliary_rows_help_on_a_trained_model(victim: Victim, pictures: Pictures) -> None:
    expected = torch.bincount(torch.tensor(REPEATS[16]), minlength=10)
    private, public = (classes(pictures, seed) for seed in (0, 1))
    rows = [10 * label + i for label, n in enumerate(expected.tolist()) for i in range(n)]
    task, seen = victim(private[rows], model="mlp")
    assert torch.equal(count_labels(seen, task, 16, rng(), public), expected)
    network = task.model(seen.sent)
    optimizer = torch.optim.Adam(network.parameters(), lr=0.001)
    for _ in range(10):
        optimizer.zero_grad()
        task.loss(network, public).backward()
        optimizer.step()
    assert task.evaluate(network, [private])["accuracy"] > 0.9
    trained = replace(seen, sent=state(network), received=task.gradient(network, private[rows]))
    informed = count_labels(trained, task, 16, rng(), public)
    blind = count_labels(trained, task, 16, rng())
    assert 2 * (informed - expected).abs().sum() <= (blind - expected).abs().sum()


def test_auxiliary_rows_are_predicted_once_for_the_same_weights(
    victim: Victim, pictures: Pictures, monkeypatch: pytest.MonkeyPatch
) -> None:
    public = Batch(torch.rand(600, 3, 32, 32), torch.arange(600) % 10)
    task, seen = victim(pictures(2, 1, 4, size=32, seed=0))
    known = seen.knowledge.model_copy(update={"auxiliary": True})
    passes: list[int] = []
    job, loss = Job(auxiliary=lambda: public), task.loss

    def watched(_: Task, network: nn.Module, batch: Batch) -> torch.Tensor:
        if len(batch) > 2:  # of the rows, not of the two examples
            passes.append(len(batch))
        return loss(network, batch)

    monkeypatch.setattr(type(task), "loss", watched)
    first = known_labels(replace(seen, knowledge=known), task, rng(), job)
    assert sum(passes) == 600
    assert max(passes) == DUMMIES  # all rows in one pass would not fit
    half = {name: value / 2 for name, value in seen.received.items()}
    known_labels(replace(seen, knowledge=known, received=half), task, rng(), job)
    assert sum(passes) == 600
    weights = {name: value.clone() for name, value in seen.sent.items()}
    again = known_labels(replace(seen, knowledge=known, sent=weights), task, rng(), job)
    assert sum(passes) == 1200
    assert torch.equal(again, first)


def defended(seen: Observation, update: Tensors, *defense: dict[str, object]) -> Observation:
    """The same client, but for the update that it sends, and what it declares."""
    sent = {name: seen.sent[name] for name in update}
    received = update if seen.kind == "gradient" else {k: sent[k] - v for k, v in update.items()}
    known = seen.knowledge.model_copy(update={"defense": defense})
    return replace(seen, received={k: v.float() for k, v in received.items()}, knowledge=known)


@pytest.mark.parametrize("step_size", [None, 0.05])
@pytest.mark.parametrize("auxiliary", [False, True])
@pytest.mark.parametrize("labels", [[0, 1, 1, 1, 4, 4, 6, 9], [0, 0, 1, 2, 3, 4, 5, 6]])
def test_an_adaptive_attack_counts_in_a_clipped_update(
    victim: Victim,
    pictures: Pictures,
    labels: list[int],
    auxiliary: bool,
    step_size: float | None,
) -> None:
    batch = pictures(8, *labels, size=32)
    task, seen = victim(batch, step_size=step_size, auxiliary=auxiliary)
    update = seen.update()
    clip = {"name": "clip", "norm": 0.1 * float(squared_norm(update).sqrt())}
    clipped = defended(seen, build_chain([clip], "").on_update(update, rng()), clip)
    job = Job(auxiliary=lambda: pictures(20, *range(10), *range(10), size=32, seed=9))
    assert known_labels(clipped, task, rng(), job, adaptive=True).tolist() == labels
    # Too short a gradient is taken for one that the prediction explains.
    assert known_labels(clipped, task, rng(), job).tolist() != labels


def test_an_adaptive_attack_counts_where_each_example_is_clipped(
    victim: Victim, pictures: Pictures
) -> None:
    labels = [0, 1, 1, 1, 4, 4, 6, 9]
    batch = pictures(8, *labels, size=32)
    task, seen = victim(batch)
    dp_sgd = {"name": "dp_sgd", "clip": 0.1, "noise_multiplier": 0.0}
    chain, network = build_chain([dp_sgd], ""), task.model(seen.sent)
    single = [chain.on_gradient(task.gradient(network, batch[i]), rng()) for i in range(8)]
    assert all(squared_norm(gradient) == pytest.approx(0.01) for gradient in single)
    mean = {
        name: torch.stack([gradient[name] for gradient in single]).mean(0) for name in single[0]
    }
    clipped = defended(seen, mean, dp_sgd)
    wrong = {}
    for adaptive in (False, True):
        counts = known_labels(clipped, task, rng(), Job(), adaptive=adaptive)
        missed = counts.bincount(minlength=10) - batch.labels.bincount(minlength=10)
        wrong[adaptive] = int(missed.abs().sum())
    # A longer gradient is cut more, and counts for less than one example.
    assert wrong[True] <= 0.5 * wrong[False]


SIGN_EACH = {"name": "sign", "stage": "sample"}
PRUNE_EACH = {"name": "prune", "stage": "sample"}


@pytest.mark.some(4)
@pytest.mark.parametrize(
    "defense", [SIGN_EACH, {**PRUNE_EACH, "fraction": 0.5}, {**PRUNE_EACH, "fraction": 0.99}]
)
@pytest.mark.parametrize(
    ("classes", "labels"),
    [
        (2, [0, 1, 1, 1]),
        (2, [0, 0, 0, 0]),
        (3, [0, 0, 1, 2]),
        (10, [0, 1, 1, 1]),
        (10, [7, 7, 7, 7]),
        (10, [2, 3, 5, 9]),
        (100, [2, 2, 50, 99]),
    ],
)
def test_an_adaptive_attack_counts_in_a_mean_of_defended_examples(
    victim: Victim,
    pictures: Pictures,
    defense: dict[str, object],
    classes: int,
    labels: list[int],
) -> None:
    batch = pictures(4, *labels)
    task, seen = victim(batch, classes=classes, defense=(defense,))
    network, chain = task.model(seen.sent), build_chain((defense,), "defense")
    each = [chain.on_gradient(task.gradient(network, batch[i]), rng()) for i in range(4)]
    mean = {name: torch.stack([gradient[name] for gradient in each]).mean(0) for name in each[0]}
    seen = replace(seen, received=mean)
    assert known_labels(seen, task, rng(), Job(), adaptive=True).tolist() == labels
    # Cut to some other length, it tells the same.
    cut = replace(seen, received={name: 0.3 * value for name, value in mean.items()})
    if defense == SIGN_EACH:
        assert known_labels(cut, task, rng(), Job(), adaptive=True).tolist() == labels
    # Read as a mean of gradients, it still tells some four classes.
    assert len(known_labels(seen, task, rng(), Job())) == 4


@pytest.mark.parametrize("classes", [2, 10])
def test_where_no_class_is_surely_absent_a_scaled_update_is_read_by_chance(
    victim: Victim, pictures: Pictures, classes: int
) -> None:
    errors = torch.zeros(2)
    for seed in range(5):
        drawn = torch.randint(classes, (16,), generator=torch.Generator().manual_seed(seed))
        batch = pictures(16, *drawn.tolist(), seed=seed)
        task, seen = victim(batch, classes=classes)
        update = {name: 0.1 * value for name, value in seen.update().items()}
        expected = torch.bincount(drawn, minlength=classes)
        for index, scaled in enumerate((False, True)):
            counts = count_labels(replace(seen, received=update), task, 16, rng(), scaled=scaled)
            errors[index] += (counts - expected).abs().sum()
    assert errors[1] < 0.5 * errors[0]


def test_an_update_of_zeros_tells_no_more_than_the_prediction(
    victim: Victim, pictures: Pictures
) -> None:
    task, seen = victim(pictures(4, 7, 7, 7, 1))
    still = {name: torch.zeros_like(value) for name, value in seen.received.items()}
    seen = replace(seen, received=still)
    scaled, plain = (count_labels(seen, task, 4, rng(), scaled=own) for own in (True, False))
    assert torch.equal(scaled, plain)


def test_an_adaptive_attack_needs_the_defense(victim: Victim, pictures: Pictures) -> None:
    task, seen = victim(pictures(4, 7, 7, 7, 1))
    with pytest.raises(CannotAttack, match="an adaptive attack needs the client's defense"):
        known_labels(seen, task, rng(), Job(), adaptive=True)


def classes(pictures: Pictures, seed: int) -> Batch:
    """Ten rows of each class: the class's own picture under noise."""
    labels = torch.arange(10).repeat_interleave(10)
    means = pictures(10, *range(10)).inputs[labels]
    noise = torch.randn(means.shape, generator=torch.Generator().manual_seed(seed))
    return Batch((means + 0.3 * noise).clamp(0, 1), labels)


def test_known_labels_are_those_granted(victim: Victim, pictures: Pictures) -> None:
    task, seen = victim(pictures(2, 3, 4), labels=(8, 2))
    assert known_labels(seen, task, rng(), Job()).tolist() == [8, 2]


def test_counting_needs_the_bias_and_its_scale(victim: Victim, pictures: Pictures) -> None:
    task, seen = victim(pictures(2, 3, 4), step_size=0.1, learning_rate=None)
    where = "the scale of a FedAvg update needs learning_rate, which"
    with pytest.raises(CannotAttack, match=re.escape(where)):
        count_labels(seen, task, 2, rng())
    received = {name: value for name, value in seen.received.items() if name != "fc.bias"}
    with pytest.raises(CannotAttack, match=r"counting 2 labels needs the bias of 'fc', which"):
        count_labels(replace(seen, received=received), task, 2, rng())


@pytest.mark.parametrize(
    ("counts", "total", "expected"),
    [
        ([-1.0, -9.0, -9.0], 4, [4, 0, 0]),
        ([1.2, 0.5, 2.3], 4, [1, 1, 2]),
        ([1.5, 1.5, 0.0], 3, [2, 1, 0]),
        ([-0.4, 1.9, 2.5], 4, [0, 2, 2]),
        ([9.0, 0.0, 3.0], 4, [3, 0, 1]),
    ],
)
def test_rounding(counts: list[float], total: int, expected: list[int]) -> None:
    assert round_counts(torch.tensor(counts), total).tolist() == expected


class Prototypes(nn.Module):
    """A cosine with a prototype of each class behind the last linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3 * 8 * 8, 32)
        self.prototypes = nn.Parameter(torch.randn(10, 32))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        features = nn.functional.normalize(self.layer(images.flatten(1)).relu(), dim=1)
        return 10 * features @ nn.functional.normalize(self.prototypes, dim=1).T


def by_prototypes(model: nn.Module, batch: Batch) -> torch.Tensor:
    return nn.functional.cross_entropy(model(batch.inputs), batch.labels)


@pytest.mark.parametrize("attack", ["closed_form", "inverting"])
def test_classes_behind_the_last_linear_layer(attack: str) -> None:
    """Its 32 outputs are no classes: the 27th was taken for one, and the loss failed on it."""
    torch.manual_seed(0)
    model, image = Prototypes(), torch.rand(1, 3, 8, 8)
    loss = by_prototypes(model, Batch(image, torch.tensor([3])))
    gradients = list(torch.autograd.grad(loss, list(model.parameters())))
    update = Update.of(
        model, gradients=gradients, loss=by_prototypes, num_examples=1, image_shape=(3, 8, 8)
    )
    guess = fedsim.attack(update, attack, budget=2, quiet=True)
    assert guess.labels == (3,)
    assert attack == "inverting" or guess.confidence == ("certified",)


def test_labels_of_a_batch_behind_the_last_linear_layer_are_not_counted() -> None:
    torch.manual_seed(0)
    model, images = Prototypes(), torch.rand(2, 3, 8, 8)
    loss = by_prototypes(model, Batch(images, torch.tensor([3, 5])))
    gradients = list(torch.autograd.grad(loss, list(model.parameters())))
    update = Update.of(
        model, gradients=gradients, loss=by_prototypes, num_examples=2, image_shape=(3, 8, 8)
    )
    with pytest.raises(CannotAttack, match=r"each of the 10 classes, .* has 32 outputs"):
        fedsim.attack(update, "inverting", budget=2, quiet=True)


class Halved(Prototypes):
    """Its forward takes float32 alone."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        if images.dtype == torch.float64:
            raise RuntimeError("expected scalar type Float but got Double")
        return super().forward(images)


def test_a_network_that_fails_inside_an_attack_is_named() -> None:
    model = Halved()
    loss = by_prototypes(model, Batch(torch.rand(1, 3, 8, 8), torch.tensor([3])))
    gradients = list(torch.autograd.grad(loss, list(model.parameters())))
    update = Update.of(
        model, gradients=gradients, loss=by_prototypes, num_examples=1, image_shape=(3, 8, 8)
    )
    with pytest.raises(CannotAttack, match=r"Halved\.forward fails .*got Double\)"):
        fedsim.attack(update, "closed_form", budget=2, quiet=True)
