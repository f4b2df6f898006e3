"""Losses other than the mean cross-entropy over classes, and inputs other than images."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import fedsim
from attacks.observed.input_range import RangeEvidence, likely_range, usual_ranges
from attacks.observed.pixel_prior import PixelPrior
from fedsim.errors import CannotAttack, ConfigError
from fedsim.reply_kind import hides_its_sign, kind_of
from fedsim.tasks.inputs import InputForm
from fedsim.types import Batch
from tests.experiments.captures.conftest import loss as cross_entropy

IMAGE = F.interpolate(
    torch.rand(1, 3, 4, 4, generator=torch.Generator().manual_seed(3)), size=8, mode="bicubic"
).clamp(0, 1)
WEIGHTS = torch.tensor([0.5, 1.0, 3.0, 1.5])


def network(outputs: int) -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Conv2d(3, 12, 5, 2, 2), nn.Sigmoid(), nn.Flatten(), nn.Linear(192, outputs)
    )


def victim_of(
    net: nn.Module,
    loss: Any,
    target: Any,
    inputs: Tensor = IMAGE,
    client: Any = None,
    **knows: Any,
) -> fedsim.Update:
    """The update of a client whose loss is another one, if ``client`` is given."""
    value = (client or loss)(net, Batch(inputs, torch.as_tensor(target)))
    gradients = list(torch.autograd.grad(value, list(net.parameters())))
    if not {"image_shape", "input_shape"} & knows.keys():
        knows["image_shape"] = tuple(inputs.shape[1:])
    knows = {"num_examples": len(inputs), **knows}
    return fedsim.Update.of(net, gradients=gradients, loss=loss, **knows)


def solved(victim: fedsim.Update, truth: Tensor = IMAGE) -> Any:
    """The guess, which is certified and exact."""
    guess = fedsim.attack(victim, "closed_form", quiet=True)
    assert guess.certified == (True,)
    assert guess.images is not None
    torch.testing.assert_close(guess.images, truth, atol=1e-4 * float(truth.abs().max()), rtol=0)
    return guess


def bce(model: Any, batch: Any) -> Tensor:
    return F.binary_cross_entropy_with_logits(model(batch.inputs).squeeze(1), batch.labels.float())


def bce_columns(model: Any, batch: Any) -> Tensor:
    return F.binary_cross_entropy_with_logits(model(batch.inputs), batch.labels)


def probability(model: Any, batch: Any) -> Tensor:
    return F.binary_cross_entropy(model(batch.inputs).sigmoid()[:, 0], batch.labels.float())


@pytest.mark.parametrize("factor", [0.01, 0.5, 1.0, 2.0, 65536.0])
def test_a_factor_of_the_loss_is_found_and_said(factor: float) -> None:
    def scaled(model: Any, batch: Any) -> Tensor:
        return factor * cross_entropy(model, batch)

    guess = solved(victim_of(network(5), cross_entropy, [2], client=scaled))
    assert guess.labels == (2,)
    assert (f"{factor:.2f} times" in guess.note or "0.01 times" in guess.note) == (factor != 1)


@pytest.mark.parametrize("lr", [0.1, 0.05, 0.2, None])
def test_a_wrong_learning_rate_is_a_factor(lr: float | None) -> None:
    net = network(5)
    before = {name: value.clone() for name, value in net.state_dict().items()}
    torch.optim.SGD(net.parameters(), 0.1).zero_grad()
    cross_entropy(net, Batch(IMAGE, torch.tensor([2]))).backward()
    torch.optim.SGD(net.parameters(), 0.1).step()
    victim = fedsim.Update.of(
        net,
        before=before,
        after=net.state_dict(),
        lr=lr,
        local_steps=1,
        loss=cross_entropy,
        image_shape=(3, 8, 8),
        num_examples=1,
    )
    assert ("times that" in solved(victim).note) == (lr in (0.05, 0.2))


@pytest.mark.parametrize("side", [-1.0, 1.0])
@pytest.mark.parametrize(
    "loss",
    [
        lambda m, b: F.soft_margin_loss(m(b.inputs)[:, 0], b.labels),
        lambda m, b: F.relu(1 - b.labels * m(b.inputs)[:, 0]).mean(),
    ],
    ids=["soft margin", "hinge"],
)
def test_labels_of_minus_1_and_1_are_no_classes_of_0_and_1(side: float, loss: Any) -> None:
    guess = solved(victim_of(network(1), loss, [side]))
    assert guess.labels == ()
    assert guess.targets.flatten().tolist() == pytest.approx([side], abs=1e-3)
    assert "times -1" not in guess.note


@pytest.mark.some(5)
@pytest.mark.parametrize("label", [0, 1])
@pytest.mark.parametrize("loss", [bce, bce_columns, probability])
def test_one_output_tells_two_classes(label: int, loss: Any) -> None:
    target = [[float(label)]] if loss is bce_columns else [label]
    assert solved(victim_of(network(1), loss, target)).labels == (label,)


def test_the_class_of_one_output_may_be_known() -> None:
    victim = victim_of(network(1), bce, [1], labels=[1])
    guess = fedsim.attack(victim, "inverting", steps=2, quiet=True)
    assert guess.labels == (1,)


@pytest.mark.some(5)
@pytest.mark.parametrize(
    "loss",
    [
        lambda m, b: F.cross_entropy(m(b.inputs), b.labels, weight=WEIGHTS, reduction="sum"),
        lambda m, b: F.cross_entropy(m(b.inputs), b.labels, label_smoothing=0.2),
        lambda m, b: F.multi_margin_loss(m(b.inputs), b.labels),
        lambda m, b: F.nll_loss(m(b.inputs).log_softmax(1), b.labels),
        lambda m, b: ((m(b.inputs).softmax(1) - F.one_hot(b.labels, 4)) ** 2).mean(),
        lambda m, b: bce_columns(m, Batch(b.inputs, F.one_hot(b.labels, 4).float())),
    ],
    ids=["weights", "smoothing", "margin", "log-softmax", "brier", "one-against-all"],
)
@pytest.mark.parametrize("label", [0, 3])
def test_losses_of_a_class(loss: Any, label: int) -> None:
    guess = solved(victim_of(network(4), loss, [label]))
    assert guess.labels == (label,)
    assert "times" not in guess.note


@pytest.mark.parametrize(
    ("loss", "target"),
    [
        (lambda m, b: F.mse_loss(m(b.inputs).squeeze(1), b.labels.float()), [1.7]),
        (lambda m, b: F.mse_loss(m(b.inputs).squeeze(1), b.labels.float()), [-1.7]),
        (lambda m, b: F.mse_loss(m(b.inputs), b.labels), [[1.5, -2.0, 30.0]]),
        (lambda m, b: F.huber_loss(m(b.inputs), b.labels), [[0.3, -0.2, 0.1]]),
        (lambda m, b: F.poisson_nll_loss(m(b.inputs).squeeze(1), b.labels), [4.0]),
    ],
    ids=["above", "below", "several", "huber", "poisson"],
)
def test_numbers_are_solved_for(loss: Any, target: Any) -> None:
    width = len(target[0]) if isinstance(target[0], list) else 1
    guess = solved(victim_of(network(width), loss, target))
    assert guess.labels == ()
    torch.testing.assert_close(
        guess.targets.double(), torch.tensor(target).double().view(1, -1), atol=1e-3, rtol=1e-4
    )
    assert "class" not in str(guess)
    assert "target" in str(guess)


def test_numbers_that_a_loss_does_not_tell_are_said_to_be_open() -> None:
    def absolute(model: Any, batch: Any) -> Tensor:
        return F.l1_loss(model(batch.inputs).squeeze(1), batch.labels.float())

    guess = solved(victim_of(network(1), absolute, [1.7]))
    assert guess.certified == (True,)
    assert "which side" in guess.note
    bent = solved(
        victim_of(network(3), lambda m, b: F.mse_loss(m(b.inputs), b.labels), [[0.3, -0.2, 0.1]])
    )
    assert "side" not in bent.note


def mixed(model: Any, batch: Any) -> Tensor:
    shares = torch.tensor([[0.3, 0.0, 0.7, 0.0]])
    return F.kl_div(model(batch.inputs).log_softmax(1), shares, reduction="batchmean")


def one_hot_squares(model: Any, batch: Any) -> Tensor:
    return F.mse_loss(model(batch.inputs).softmax(1), F.one_hot(batch.labels, 4).float())


@pytest.mark.parametrize("client", [mixed, one_hot_squares])
def test_the_input_of_a_first_linear_layer_needs_no_target(client: Any) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(192, 20), nn.ReLU(), nn.Linear(20, 4))
    victim = victim_of(net, cross_entropy, [2], client=client)
    guess = fedsim.attack(victim, "closed_form", quiet=True)
    assert guess.certified == (False,)
    assert fedsim.score(guess, truth=IMAGE).mean("psnr") > 75
    assert "next to nothing" not in guess.note


def with_entropy(model: Any, batch: Any) -> Tensor:
    entropy = model(batch.inputs).softmax(1) * model(batch.inputs).log_softmax(1)
    value: Tensor = cross_entropy(model, batch) + 0.01 * entropy.sum(1).mean()
    return value


def test_a_loss_may_call_the_network_several_times() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(192, 20), nn.ReLU(), nn.Linear(20, 4))
    guess = fedsim.attack(victim_of(net, with_entropy, [2]), "spear", quiet=True)
    assert (guess.certified, guess.labels, guess.note) == ((True,), (2,), "")


def test_a_batch_of_all_classes_but_one_is_not_turned_round() -> None:
    def summed(model: Any, batch: Any) -> Tensor:
        return F.cross_entropy(model(batch.inputs), batch.labels, reduction="sum")

    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(192, 40), nn.ReLU(), nn.Linear(40, 4))
    images = torch.rand(3, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    victim = victim_of(net, summed, [2, 0, 1], images, num_examples=None)
    assert "turned" not in victim.reading.codes
    guess = fedsim.attack(victim, "spear", quiet=True)
    assert guess.certified == (True, True, True)
    assert "times -1" not in guess.note


class ChannelsLast(nn.Module):
    """Takes ``(height, width, channel)``, as apps of another framework's data have it."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, inputs: Tensor) -> Tensor:
        return self.inner(inputs.permute(0, 3, 1, 2))  # type: ignore[no-any-return]


def linear_net(*first: nn.Module, bias: bool = True) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        *first, nn.Flatten(), nn.Linear(192, 40), nn.ReLU(), nn.Linear(40, 4, bias=bias)
    )


@pytest.mark.parametrize(
    "net",
    [
        ChannelsLast(linear_net()),
        linear_net(nn.BatchNorm2d(8)).eval(),
        linear_net(bias=False),
    ],
    ids=["channels last", "normalised by the first layer", "head without bias"],
)
def test_what_does_not_hide_an_input(net: nn.Module) -> None:
    inputs = torch.rand(1, 8, 8, 3, generator=torch.Generator().manual_seed(2))
    victim = victim_of(net, cross_entropy, [2], inputs)
    solved(victim, inputs)
    guess = fedsim.attack(victim, "spear", quiet=True, samples=4096)
    assert guess.certified == (True,)
    assert guess.images is not None
    torch.testing.assert_close(guess.images, inputs, atol=1e-4, rtol=0)


def test_several_classes_tell_the_sign() -> None:
    """Where the gradient comes times -1, the other classes explain nothing."""

    def ascent(model: Any, batch: Any) -> Tensor:
        return -bce_columns(model, batch)

    guess = solved(victim_of(network(4), bce_columns, [[1.0, 1.0, 1.0, 0.0]], client=ascent))
    assert guess.labels == ((0, 1, 2),)
    assert "times -1" in guess.note


def test_several_classes_of_one_example() -> None:
    target = [[1.0, 0.0, 1.0, 0.0]]
    guess = solved(victim_of(network(4), bce_columns, target))
    assert guess.labels == ((0, 2),)
    assert "classes 0, 2" in str(guess)
    found = fedsim.attack(victim_of(network(4), bce_columns, target), "dlg", steps=40, quiet=True)
    assert found.labels == ((0, 2),)


def test_numbers_of_several_examples_are_refused_or_searched_for() -> None:
    images = torch.cat([IMAGE, 1 - IMAGE])

    def squared(model: Any, batch: Any) -> Tensor:
        return F.mse_loss(model(batch.inputs).squeeze(1), batch.labels)

    victim = victim_of(network(1), squared, [1.0, 2.0], images)
    with pytest.raises(CannotAttack, match="of 2 examples"):
        fedsim.attack(victim, "inverting", steps=2, quiet=True)
    assert fedsim.attack(victim, "dlg", steps=2, quiet=True).targets.shape == (2, 1)
    with pytest.raises(ConfigError, match=r"labels: .* numbers"):
        victim_of(network(1), squared, [1.0], labels=[1.0])


@pytest.mark.parametrize(
    ("low", "high"), [(-2.1, 2.6), (0.0, 255.0), (-1.0, 1.0), (0.0, 65535.0), (-500.0, -400.0)]
)
@pytest.mark.parametrize("said", [False, True])
def test_solved_inputs_are_not_cut(low: float, high: float, said: bool) -> None:
    inputs = low + (high - low) * IMAGE
    net = network(5)
    with torch.no_grad():  # so that no sigmoid is saturated
        net.get_parameter("0.weight").div_(max(1.0, abs(low), abs(high)))
    knows: dict[str, Any] = {"input_range": (low, high)} if said else {}
    victim = victim_of(net, cross_entropy, [2], inputs, **knows)
    guess = solved(victim, inputs)
    shown = "range" in victim.reading.codes or "values run" in guess.note
    assert shown == (not said)
    assert fedsim.score(guess, inputs).mean("psnr") > 60


def natural(count: int) -> Tensor:
    prior = PixelPrior.of(None, (3, 16, 16))
    none, rng = torch.zeros(0, dtype=torch.int64), torch.Generator().manual_seed(9)
    return (prior.mean + prior.draw(count, none, rng)).clamp(0, 1).float()


def first_layer_net(shown_by: str) -> nn.Sequential:
    """A network whose statistics, or the gradient of its first layer, show its inputs."""
    torch.manual_seed(3)
    middle = [nn.BatchNorm2d(16)] if shown_by == "statistics" else []
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, 1, 1), *middle, nn.ReLU(), nn.Flatten(), nn.Linear(16 * 256, 5)
    )


@pytest.mark.parametrize(("low", "high"), [((-1.0,), (1.0,)), ((0.0,), (255.0,)), ((0.0,), (1.0,))])
@pytest.mark.parametrize("shown_by", ["statistics", "gradient"])
def test_the_range_of_images_is_found(
    low: tuple[float, ...], high: tuple[float, ...], shown_by: str
) -> None:
    """Images by the law of natural ones, of which a search needs the range."""
    pixels, form = natural(4), InputForm((3, 16, 16), low, high)
    net = first_layer_net(shown_by)
    before = {name: value.clone() for name, value in net.state_dict().items()}
    optimizer = torch.optim.SGD(net.parameters(), 1e-5)
    cross_entropy(net, Batch(form.given(pixels), torch.tensor([0, 1, 2, 3]))).backward()
    optimizer.step()
    after = net.state_dict()
    victim = fedsim.Update.of(
        net, before=before, after=after, loss=cross_entropy, image_shape=(3, 16, 16)
    )
    assert (victim.task.spec.low, victim.task.spec.high) == (low, high)
    assert ("inputs lie in" in str(victim)) == (low + high != (0.0, 1.0))
    said = fedsim.Update.of(
        net,
        before=before,
        after=after,
        loss=cross_entropy,
        image_shape=(3, 16, 16),
        input_range=(0, 1),
    )
    assert (said.task.spec.low, said.task.spec.high) == ((0.0,), (1.0,))


@pytest.mark.parametrize(
    ("shares", "distance", "expected"),
    [
        ([(0.02, 0.96, 0.02), (0.03, 0.95, 0.02)], 1.0, (-1.0, 1.0)),
        ([(0.98, 0.01, 0.01)], 1.0, (0.0, 1.0)),
        ([(0.02, 0.96, 0.02), (0.02, 0.78, 0.2)], 1.0, None),
        ([(0.01, 0.98, 0.01)], 5.0, None),
    ],
)
def test_a_range_is_told_where_it_is_sure(
    shares: list[tuple[float, ...]], distance: float, expected: tuple[float, float] | None
) -> None:
    forms = tuple(InputForm.of((3, 8, 8), bounds) for bounds in usual_ranges((3, 8, 8))[:3])
    evidence = [
        RangeEvidence(forms, torch.tensor(each).log(), torch.full((3,), distance), "it shows")
        for each in shares
    ]
    likely = likely_range(evidence)
    assert (None if likely is None else (*likely.form.low, *likely.form.high)) == expected


def filtered(entries: Tensor, share: float, most: float) -> Tensor:
    """As filters on clients do: the smallest are zeroed, the largest cut."""
    sizes = entries.abs()
    return (entries * (sizes >= sizes.quantile(share))).clamp(
        -most * sizes.max(), most * sizes.max()
    )


@pytest.mark.parametrize(
    "defended",
    [
        lambda entries: torch.randn(len(entries), generator=torch.Generator().manual_seed(0)),
        torch.sign,
        lambda entries: filtered(entries, 0.99, 1.0),
        lambda entries: filtered(entries, 0.9, 0.3),
        lambda entries: filtered(entries, 0.1, 0.01),
    ],
    ids=["noise", "signs", "pruning", "percentile", "cut"],
)
@pytest.mark.parametrize("shown_by", ["statistics", "gradient"])
def test_a_defense_shows_no_range(shown_by: str, defended: Callable[[Tensor], Tensor]) -> None:
    pixels = natural(4)
    net = first_layer_net(shown_by)
    before = {name: value.clone() for name, value in net.state_dict().items()}
    cross_entropy(net, Batch(pixels, torch.tensor([0, 1, 2, 3]))).backward()
    torch.optim.SGD(net.parameters(), 1e-3).step()
    moved = {k: v - before[k] for k, v in net.state_dict().items() if v.is_floating_point()}
    sizes = [value.numel() for value in moved.values()]
    parts = defended(torch.cat([value.flatten() for value in moved.values()])).split(sizes)
    after = {
        name: before[name] + part.view_as(before[name])
        for name, part in zip(moved, parts, strict=True)
    }
    victim = fedsim.Update.of(
        net, before=before, after=before | after, loss=cross_entropy, image_shape=(3, 16, 16)
    )
    assert "range" not in victim.reading.codes


@pytest.mark.parametrize(("classes", "count"), [(4, 1), (10, None)])
def test_gradients_of_the_opposite_sign_are_turned_round(classes: int, count: int | None) -> None:
    def ascent(model: Any, batch: Any) -> Tensor:
        return -cross_entropy(model, batch)

    victim = victim_of(network(classes), cross_entropy, [2], client=ascent, num_examples=count)
    assert "turned" in victim.reading.codes
    assert solved(victim).labels == (2,)


@pytest.mark.some(3)
@pytest.mark.parametrize("label", [0, 1])
@pytest.mark.parametrize("outputs", [1, 2])
@pytest.mark.parametrize("factor", [1.0, -1.0, 2.0, -2.0])
def test_two_classes_hide_the_sign_of_a_scaled_gradient(
    factor: float, outputs: int, label: int
) -> None:
    loss = bce if outputs == 1 else cross_entropy

    def scaled(model: Any, batch: Any) -> Tensor:
        return factor * loss(model, batch)

    victim = victim_of(network(outputs), loss, [label], client=scaled)
    guess = fedsim.attack(victim, "closed_form", quiet=True)
    assert guess.images is not None
    torch.testing.assert_close(guess.images, IMAGE, atol=1e-4, rtol=0)
    if abs(factor) == 1:
        assert (guess.labels, guess.confidence) == ((label,), ("certified",))
        assert ("gradient times -1" in guess.note) == (factor < 0)
    else:
        assert guess.confidence == ("guess",)
        assert "opposite sign" in guess.note


def test_two_equally_likely_classes_hide_the_sign() -> None:
    net = nn.Sequential(nn.Flatten(), nn.Linear(192, 2))
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.zero_()
    guess = fedsim.attack(victim_of(net, cross_entropy, [1]), "closed_form", quiet=True)
    assert guess.confidence == ("guess",)


@pytest.mark.parametrize("factor", [-1.0, 2.0])
def test_a_batch_of_two_classes_tells_its_sign(factor: float) -> None:
    """A loss weighs the examples alike, and with the other classes their weights would differ."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(192, 80), nn.ReLU(), nn.Linear(80, 2))
    images = torch.cat([IMAGE, IMAGE.flip(2)])

    def scaled(model: Any, batch: Any) -> Tensor:
        return factor * cross_entropy(model, batch)

    victim = victim_of(net, cross_entropy, [0, 1], images, scaled)
    guess = fedsim.attack(victim, "spear", quiet=True)
    assert guess.certified == (True, True)
    assert guess.images is not None
    first = int((guess.images - IMAGE).square().flatten(1).sum(1).argmin())
    assert guess.labels == ((0, 1) if first == 0 else (1, 0))


def test_mixtures_of_examples_with_one_output_are_no_images() -> None:
    """All units that the same examples activate have one ratio, and as many zeros."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(192, 80), nn.ReLU(), nn.Linear(80, 1))
    images = torch.rand(4, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    victim = victim_of(net, bce, [0, 1, 1, 0], images)
    guess = fedsim.attack(victim, "spear", budget=3, quiet=True)
    exact = [min(float((g - x).abs().max()) for x in images) < 1e-3 for g in guess.images]
    levels = zip(exact, guess.confidence, strict=True)
    assert all(right or level == "guess" for right, level in levels)
    if "certified" not in guess.confidence:
        assert "the slopes of all examples are parallel" in guess.note


def test_a_batch_of_most_classes_does_not_tell_its_sign() -> None:
    net = network(10)
    images = torch.rand(8, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    value = cross_entropy(net, Batch(images, torch.arange(8)))
    gradients = list(torch.autograd.grad(value, list(net.parameters())))
    victim = fedsim.Update.of(net, gradients=gradients, loss=cross_entropy, image_shape=(3, 8, 8))
    assert "turned" not in victim.reading.codes
    arrays = {
        name: g.numpy() for (name, _), g in zip(net.named_parameters(), gradients, strict=True)
    }
    sent = {name: value.detach().numpy() for name, value in net.named_parameters()}
    assert kind_of(sent, arrays) == "gradient"
    assert hides_its_sign(arrays)


def test_a_loss_that_normalises_is_undone() -> None:
    mean, std = torch.tensor([0.4, 0.5, 0.6]).view(3, 1, 1), torch.tensor(0.25)

    def normalised(model: Any, batch: Any) -> Tensor:
        return F.cross_entropy(model((batch.inputs - mean) / std), batch.labels)

    assert solved(victim_of(network(5), normalised, [2])).note == ""


@pytest.mark.parametrize(
    "net",
    [
        nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3)),
        nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.Dropout(0.5), nn.Linear(16, 3)).eval(),
        nn.Sequential(nn.Linear(6, 16, bias=False), nn.Tanh(), nn.Linear(16, 3)),
        nn.Linear(6, 3),
    ],
    ids=["relu", "gelu", "tanh", "logistic"],
)
def test_rows_of_a_table(net: nn.Module) -> None:
    row = torch.tensor([[0.3, -1.2, 4.0, 0.0, 2.5, -0.7]])
    victim = victim_of(net, cross_entropy, [1], row, input_shape=(6,))
    guess = solved(victim, row)
    assert guess.labels == (1,)
    assert "1 row, 1 certified" in guess.line
    assert fedsim.score(guess, row).mean("mse") < 1e-6


def test_windows_of_sensors() -> None:
    torch.manual_seed(2)
    net = nn.Sequential(
        nn.Conv1d(4, 16, 5, 2, 2), nn.Tanh(), nn.Identity(), nn.Flatten(), nn.Linear(256, 6)
    )
    window = torch.randn(1, 4, 32, generator=torch.Generator().manual_seed(1)) * 0.5
    victim = victim_of(net, cross_entropy, [4], window, input_shape=(4, 32))
    solved(victim, window)
    said = victim_of(
        net, cross_entropy, [4], window, input_shape=(4, 32), input_range=([-3] * 4, [3] * 4)
    )
    guess = fedsim.attack(said, "inverting", steps=2, quiet=True)
    assert guess.images is not None
    assert guess.images.shape == (1, 4, 32)
    assert guess.images.min() < 0


@pytest.mark.some(3)
@pytest.mark.parametrize("channels", [1, 2, 5, 13])
def test_any_number_of_channels_and_no_square(channels: int) -> None:
    torch.manual_seed(2)
    net = nn.Sequential(
        nn.Conv2d(channels, 4 * channels, 3, 2, 1),
        nn.Sigmoid(),
        nn.Flatten(),
        nn.Linear(4 * channels * 15, 3),
    )
    image = torch.rand(1, channels, 6, 10, generator=torch.Generator().manual_seed(0))
    solved(victim_of(net, cross_entropy, [2], image), image)
    guess = fedsim.attack(victim_of(net, cross_entropy, [2], image), "bayes", steps=2, quiet=True)
    assert guess.images is not None
    assert guess.images.shape == image.shape


@pytest.mark.parametrize(("count", "factor"), [(1, 0.5), (3, 1.0), (3, 2.0)])
def test_rows_of_several_examples(count: int, factor: float) -> None:
    def scaled(model: Any, batch: Any) -> Tensor:
        return factor * cross_entropy(model, batch)

    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(20, 200), nn.ReLU(), nn.Linear(200, 4))
    rows = 2 * torch.randn(count, 20, generator=torch.Generator().manual_seed(5))
    labels = [1, 0, 2][:count]
    victim = victim_of(net, cross_entropy, labels, rows, scaled, input_shape=(20,))
    guess = fedsim.attack(victim, "spear", quiet=True)
    assert guess.certified == (True,) * count
    assert fedsim.score(guess, (rows, labels)).mean("mse") < 1e-8
    assert sorted(guess.labels) == sorted(labels)
    assert (f"{factor:.2f} times that of the loss" in guess.note) == (factor != 1)
    assert "values run" in guess.note


@pytest.mark.parametrize(
    ("outputs", "loss", "labels"),
    [
        (1, bce, [0, 1, 1, 1]),
        (5, lambda m, b: F.cross_entropy(m(b.inputs), b.labels, reduction="sum"), [0, 0, 3, 4]),
        (5, lambda m, b: F.cross_entropy(m(b.inputs), b.labels, label_smoothing=0.2), [1, 1, 2, 4]),
    ],
    ids=["one output", "sum", "smoothing"],
)
def test_classes_of_a_batch(outputs: int, loss: Any, labels: list[int]) -> None:
    images = torch.cat([IMAGE, 1 - IMAGE, IMAGE.flip(3), IMAGE.flip(2)])
    victim = victim_of(network(outputs), loss, labels, images)
    guess = fedsim.attack(victim, "inverting", steps=2, quiet=True)
    assert sorted(guess.labels) == labels
