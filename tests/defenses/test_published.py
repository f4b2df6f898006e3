"""Defenses of papers: each does what its formula says, and tells an attacker what it does."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from attacks.base import Job
from attacks.images.bayes import Bayes
from attacks.images.image_losses import matching_loss
from attacks.observed.replay import replay
from fedsim.capture import Observation
from fedsim.defenses import build_chain
from fedsim.defenses.ats import Ats, brighten, sharpen, shift_x, shift_y
from fedsim.defenses.base import Step
from fedsim.defenses.censor import Censor
from fedsim.defenses.dual_prune import DualPrune
from fedsim.defenses.ffa_lora import FfaLora
from fedsim.defenses.optimal_noise import OptimalNoise
from fedsim.defenses.pfgd import Pfgd, cosines
from fedsim.defenses.soteria import Soteria
from fedsim.defenses.svdefense import SvDefense
from fedsim.defenses.tip import Tip
from fedsim.defenses.withhold import Withhold
from fedsim.errors import ConfigError
from fedsim.tasks.base import Task, load_state
from fedsim.types import Batch, Tensors

Victim = Callable[..., tuple[Task, Observation]]
Pictures = Callable[..., Batch]
CPU = torch.device("cpu")


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.fixture
def step(victim: Victim, pictures: Pictures) -> Callable[[int], tuple[Step, Tensors]]:
    """A step of a LeNet on so many pictures, and its gradient."""

    def make(count: int) -> tuple[Step, Tensors]:
        batch = pictures(count, *range(count))
        task, seen = victim(batch)
        network = task.build()
        load_state(network, seen.sent)
        return Step(network, batch, task.loss), seen.received

    return make


def attacked(
    victim: Victim, batch: Batch, name: str, received: Tensors
) -> tuple[Task, Observation]:
    task, seen = victim(batch, defense=({"name": name},))
    return task, Observation(seen.key, seen.sent, received, "gradient", seen.knowledge)


def test_soteria_leaves_out_the_features_with_the_smallest_scores(
    step: Callable[[int], tuple[Step, Tensors]],
) -> None:
    one, gradient = step(2)
    sent = Soteria(percentile=70).on_step(gradient, one, rng())
    zeroed = (sent["fc.weight"] == 0).all(0)
    assert float(zeroed.double().mean()) == pytest.approx(0.7, abs=0.01)
    assert all(torch.equal(sent[k], v) for k, v in gradient.items() if k != "fc.weight")
    assert torch.equal(sent["fc.weight"][:, ~zeroed], gradient["fc.weight"][:, ~zeroed])
    # The score of one feature, by its definition.
    body, head = one.model.body, one.model.fc
    assert isinstance(body, nn.Module)
    assert isinstance(head, nn.Linear)
    expected = 0.0
    for image in one.batch.inputs:
        image = image[None].clone().requires_grad_(True)
        feature = body(image)[0, 5]
        (slope,) = torch.autograd.grad(feature, image)
        expected += float(slope.norm() / (feature.detach() + 0.1))
    scores = Soteria().scores(one, head)
    assert float(scores[5]) == pytest.approx(expected, rel=1e-5)
    assert scores[zeroed].max() < scores[~zeroed].min()


def test_soteria_needs_images_and_a_linear_layer_at_the_end() -> None:
    network = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    images = Step(network, Batch(torch.zeros(1, 2), torch.zeros(1)), lambda *_: torch.zeros(()))
    with pytest.raises(ConfigError, match="does not end in a linear layer"):
        Soteria().on_step({}, images, rng())
    tokens = Step(
        nn.Sequential(nn.Linear(2, 2)), Batch(torch.tensor([[1]]), torch.zeros(1)), images.loss
    )
    with pytest.raises(ConfigError, match="Choose images"):
        Soteria().on_step({}, tokens, rng())


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


def test_cosines_are_orthonormal_and_their_own_inverse() -> None:
    places = torch.arange(7, dtype=torch.float64) + 0.5
    table = math.sqrt(2 / 7) * (math.pi / 7 * places[:, None] * places).cos()
    values = torch.randn(7, generator=rng(), dtype=torch.float64)
    torch.testing.assert_close(cosines(values), table @ values)
    torch.testing.assert_close(cosines(cosines(values)), values)


def test_pfgd_leaves_out_the_lowest_frequencies_and_the_surrogate_is_it() -> None:
    update = {"a": torch.randn(30, 10, generator=rng()), "b": torch.randn(5, generator=rng(1))}
    sent = Pfgd(fraction=0.1).on_update(update, rng())
    assert torch.equal(sent["b"], update["b"])  # a tenth of five is none
    before, after = cosines(update["a"].flatten()), cosines(sent["a"].flatten())
    assert after[:30].abs().max() < 1e-5
    torch.testing.assert_close(after[30:], before[30:], atol=1e-5, rtol=0)
    torch.testing.assert_close(Pfgd(fraction=0.1).surrogate(sent)["a"], sent["a"])


def test_what_shifts_and_brightens_an_image() -> None:
    image = torch.rand(3, 32, 32, generator=rng())
    moved = shift_x(image, 0.25)
    assert torch.equal(moved[..., :24], image[..., 8:])
    assert not moved[..., 24:].any()
    assert torch.equal(shift_y(image, -0.25)[:, 8:], image[:, :24])
    torch.testing.assert_close(brighten(image, -0.5), image / 2)
    flat = torch.full((3, 8, 8), 0.4)
    torch.testing.assert_close(sharpen(flat, 0.3), flat)
    assert torch.equal(sharpen(image, 0.5)[:, 0], image[:, 0])


def test_ats_is_undone_but_for_what_was_shifted_out(pictures: Pictures) -> None:
    batch = pictures(6, *range(6), size=32)
    bright = Batch(batch.inputs.clamp(min=0.05), batch.labels)
    ats = Ats()
    changed = ats.on_batch(bright, nn.Identity(), rng())
    back = ats.recover(changed, nn.Identity())
    error = (back.inputs - bright.inputs).square().flatten(1).mean(1)
    as_sent = (changed.inputs - bright.inputs).square().flatten(1).mean(1)
    assert int((error < as_sent).sum()) >= 5
    assert float(error.mean()) < 0.5 * float(as_sent.mean())
    with pytest.raises(ConfigError, match="token ids"):
        ats.on_batch(Batch(torch.tensor([[1]]), torch.tensor([0])), nn.Identity(), rng())


def test_an_unknown_transformation_is_named() -> None:
    with pytest.raises(ConfigError, match="transformation '99'; known are 3, 4, 7"):
        build_chain([{"name": "ats", "policies": ["3-99"]}], "defenses")


def test_ffa_lora_freezes_the_first_factors() -> None:
    network = nn.ModuleDict({"q": nn.ModuleDict({"lora_A": nn.ModuleDict({"d": nn.Linear(2, 1)})})})
    network["head"] = nn.Linear(2, 2)
    FfaLora().on_model(network)
    trained = {name for name, value in network.named_parameters() if value.requires_grad}
    assert trained == {"head.weight", "head.bias"}
    with pytest.raises(ConfigError, match="has no adapter"):
        FfaLora().on_model(nn.Linear(2, 2))


def test_the_truth_fits_what_an_adaptive_attacker_expects(
    victim: Victim, pictures: Pictures, step: Callable[[int], tuple[Step, Tensors]]
) -> None:
    batch = pictures(1, 0)
    one, gradient = step(1)
    censored = Censor(rate=0.5, trials=50).on_step(gradient, one, rng(3))
    assert censored is not gradient
    sent: list[tuple[dict[str, object], Tensors]] = [
        ({"name": "soteria"}, Soteria().on_step(gradient, one, rng())),
        ({"name": "pfgd", "fraction": 0.2}, Pfgd(fraction=0.2).on_update(gradient, rng())),
        ({"name": "dual_prune"}, DualPrune().on_update(gradient, rng())),
        ({"name": "censor"}, censored),
        ({"name": "tip"}, Tip().on_step(gradient, one, rng())),
        ({"name": "svdefense"}, SvDefense().on_update(gradient, rng())),
    ]
    for table, received in sent:
        task, seen = victim(batch, defense=(table,))
        model = replay(replace(seen, received=received), task, CPU)
        oblivious, aware = (
            float(matching_loss(model, seen, adaptive=own)(batch.inputs, batch.labels, received))
            for own in (False, True)
        )
        assert aware < 1e-4 < 0.01 < oblivious, table


def test_censor_is_read_where_it_sends_the_truth(victim: Victim, pictures: Pictures) -> None:
    batch = pictures(1, 6)
    task, seen = victim(batch, defense=({"name": "censor"},))
    (recovered,) = Bayes(steps=200, adaptive=True).reconstruct([seen], task, [rng()], Job())
    grey: Tensor = (batch.inputs - 0.5).square().mean()
    assert float((recovered.guess.inputs - batch.inputs).square().mean()) < 0.2 * float(grey)


def test_optimal_noise_is_as_large_as_a_coordinate_tells(
    step: Callable[[int], tuple[Step, Tensors]],
) -> None:
    one, gradient = step(1)

    def bias(inputs: Tensor) -> Tensor:
        loss = one.loss(one.model, Batch(inputs, one.batch.labels))
        (slope,) = torch.autograd.grad(
            loss, [one.model.get_parameter("fc.bias")], create_graph=True
        )
        return slope

    rows = torch.autograd.functional.jacobian(bias, one.batch.inputs)
    lengths = OptimalNoise(samples=400).lengths(gradient, one, rng())
    torch.testing.assert_close(lengths["fc.bias"], rows.flatten(1).norm(dim=1), rtol=0.15, atol=0)
    # Of two draws' difference, the noise alone: its mean square is 2 std^2.
    first, second = (OptimalNoise(std=0.3).on_step(gradient, one, rng(s)) for s in (1, 2))
    apart = torch.cat([(first[name] - second[name]).flatten() for name in gradient])
    assert float(apart.square().mean().sqrt()) == pytest.approx(0.3 * math.sqrt(2), rel=0.1)
    tokens = Batch(torch.tensor([[1]]), torch.zeros(1))
    with pytest.raises(ConfigError, match="Choose images"):
        OptimalNoise().on_step(gradient, Step(one.model, tokens, one.loss), rng())


def test_tip_adds_noise_to_high_frequencies_of_important_kernels(
    step: Callable[[int], tuple[Step, Tensors]],
) -> None:
    one, gradient = step(2)
    tip = Tip(clip=1e6, epsilon=1e7)  # nothing is clipped
    noise = [
        {name: value - gradient[name] for name, value in tip.on_step(gradient, one, rng(s)).items()}
        for s in range(20)
    ]
    first = "body.0.weight"
    touched = noise[0][first].flatten(1).any(1)
    assert int(touched.sum()) == math.ceil(0.3 * len(touched))
    assert not any(noise[0][name].any() for name in gradient if not name.startswith("body."))
    # By the definition: of 25 frequencies the 16 with more than half of the farthest's distance.
    low = [(0, 0), (0, 1), (1, 0), (1, 1), (1, 4), (0, 4), (4, 0), (4, 1), (4, 4)]
    spectra = torch.fft.fft2(torch.stack([each[first][touched] for each in noise]))
    assert max(float(spectra[..., i, j].abs().max()) for i, j in low) < 1e-5
    expected = 1e6 * math.sqrt(2 * math.log(1.25e5)) / (2 * 1e7) * 4 / 25
    drawn = torch.stack([each[first][touched] for each in noise])
    assert float(drawn.square().mean().sqrt()) == pytest.approx(expected, rel=0.05)
    # Of one convolution, Grad-CAM's importance by its definition.
    body, head = one.model.body, one.model.fc
    assert isinstance(body, nn.Sequential)
    assert isinstance(head, nn.Linear)
    channels = body[0](one.batch.inputs).detach().requires_grad_(True)
    scores = head(body[1:](channels))
    true = sum(score[label] for score, label in zip(scores, one.batch.labels, strict=True))
    (slopes,) = torch.autograd.grad(true, channels)
    importance = slopes.mean((2, 3)).abs().mean(0)
    torch.testing.assert_close(tip.importances(one)["body.0"], importance)
    assert float(importance[touched].min()) > float(importance[~touched].max())
    linear = nn.Linear(2, 2)
    with pytest.raises(ConfigError, match="no convolution"):
        tip.on_step(gradient, Step(linear, one.batch, one.loss), rng())


def test_svdefense_sends_as_much_energy_as_the_entropy_asks_for() -> None:
    left, _, right = torch.linalg.svd(torch.randn(4, 6, generator=rng()), full_matrices=False)
    sizes = torch.tensor([3.0, 2.0, 1.0, 0.5])
    matrix, bias = (left * sizes) @ right, torch.randn(4, generator=rng(1))
    shares = sizes.square() / sizes.square().sum()
    entropy = float(-(shares * shares.log()).sum()) / math.log(4)
    for least, most in ((0.2, 0.5), (0.5, 0.9), (0.9, 1.0)):
        rank = int((shares.cumsum(0) < least + (most - least) * entropy).sum()) + 1
        truncated = (left[:, :rank] * sizes[:rank]) @ right[:rank]
        weights = truncated.norm(dim=1) / truncated.norm(dim=1).max()
        update = {"fc.weight": matrix.view(4, 2, 3), "fc.bias": bias}
        sent = SvDefense(least=least, most=most).on_update(update, rng())
        torch.testing.assert_close(sent["fc.weight"].flatten(1), weights[:, None] * truncated)
        torch.testing.assert_close(sent["fc.bias"], weights * bias)
    one = torch.outer(bias, matrix[0])
    alone = SvDefense().on_update({"w": one}, rng())["w"]
    torch.testing.assert_close(alone / bias.abs()[:, None] * bias.abs().max(), one)


def test_dual_pruning_leaves_out_the_largest_and_the_smallest() -> None:
    values = torch.tensor([[4.0, -1.0, 0.5, -8.0], [2.0, 3.0, 0.1, -6.0]])
    sent = DualPrune(largest=0.25, smallest=0.5).on_update({"a": values}, rng())["a"]
    assert sent.tolist() == [[4.0, 0.0, 0.0, 0.0], [0.0, 3.0, 0.0, 0.0]]
    assert torch.equal(DualPrune(largest=0, smallest=0).surrogate({"a": values})["a"], values)
    short = torch.tensor([2.0, -1.0])
    assert DualPrune().surrogate({"a": short})["a"].tolist() == [2.0, 0.0]
    with pytest.raises(ValueError, match="nothing to send"):
        DualPrune(largest=0.3, smallest=0.7)


def test_what_is_withheld_is_not_sent_and_the_rest_is_as_it_was(
    victim: Victim, pictures: Pictures, step: Callable[[int], tuple[Step, Tensors]]
) -> None:
    one, gradient = step(1)
    head = Withhold(tensors=("fc.*",), others=True)
    head.on_model(one.model)
    sent = head.on_update(gradient, rng())
    assert [*sent] == ["fc.weight", "fc.bias"]
    assert all(sent[name] is gradient[name] for name in sent)
    assert [*Withhold(tensors=("fc.*",)).surrogate(gradient)] == [*gradient][:-2]
    for patterns, said in ((("body.*", "*"), "nothing would be sent"), (("f.*",), "fits no")):
        with pytest.raises(ConfigError, match=said):
            Withhold(tensors=patterns).on_model(one.model)
    batch = pictures(1, 0)
    table = {"name": "withhold", "tensors": ["fc.*"], "others": True}
    task, seen = victim(batch, defense=(table,))
    model = replay(replace(seen, received=sent), task, CPU)
    loss = matching_loss(model, seen, adaptive=True)(batch.inputs, batch.labels, sent)
    assert float(loss.detach()) < 1e-6
