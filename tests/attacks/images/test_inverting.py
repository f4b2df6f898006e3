"""Inverting Gradients: closed forms of its terms, lanes, defenses and budget."""

import re
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.func import vmap

from attacks.base import Job
from attacks.engine.descent import restart_generators
from attacks.images.image_losses import (
    ImageLoss,
    matching_loss,
    nearest,
    sign_distance,
    total_variation,
)
from attacks.images.inverting import Inverting
from attacks.observed.distance import cosine_distance
from attacks.observed.replay import replay
from fedsim.defenses import build_chain
from fedsim.defenses.prune import Prune
from fedsim.errors import CannotAttack
from fedsim.store.capture import Observation
from fedsim.tasks.base import Task
from fedsim.types import Batch, Tensors
from tests.attacks.images.cases import Victim, defended, rng

Pictures = Callable[..., Batch]
CPU = torch.device("cpu")


def test_total_variation() -> None:
    flat, edge = torch.full((2, 3, 4, 4), 0.3), torch.zeros(1, 1, 4, 4)
    edge[..., 2:] = 1
    assert total_variation(flat) == 0
    # One unit step in each of four rows, over sixteen pixels.
    assert total_variation(edge) == total_variation(edge.mT) == 4 / 16


@pytest.mark.some(2)
@pytest.mark.parametrize("step_size", [None, 0.1])
def test_recovers_an_image(victim: Victim, pictures: Pictures, step_size: float | None) -> None:
    batch = pictures(1, 6)
    # The cosine needs neither the step size nor the number of steps.
    task, seen = victim(batch, step_size=step_size, learning_rate=None)
    (recovered,) = Inverting(steps=300).reconstruct([seen], task, [rng()], Job())
    grey = (batch.inputs - 0.5).square().mean()
    assert recovered.guess.labels.tolist() == [6]
    assert (recovered.guess.inputs - batch.inputs).square().mean() < 0.1 * grey
    assert (recovered.steps, recovered.expired) == (300, False)
    assert [step for step, _, _ in recovered.trace] == [0, 100, 200, 300]


def test_objective_is_the_matching_loss_of_the_guess(victim: Victim, pictures: Pictures) -> None:
    task, seen = victim(pictures(2, 6, 1))
    (recovered,) = Inverting(steps=7, restarts=3).reconstruct([seen], task, [rng()], Job())
    gradient = replay(seen, task, CPU).pure_gradient(recovered.guess)
    assert recovered.objective == pytest.approx(float(cosine_distance(gradient, seen.received)))
    single = Inverting(steps=7).reconstruct([seen], task, [rng()], Job())[0].objective
    assert single is not None
    assert recovered.objective is not None
    assert recovered.objective <= single + 1e-6


def test_guess_does_not_depend_on_the_group(victim: Victim, pictures: Pictures) -> None:
    batches = [pictures(1, 6), pictures(1, 2, seed=1), pictures(2, 3, 3, seed=2)]
    seen = [victim(batch, client=i)[1] for i, batch in enumerate(batches)]
    task = victim(batches[0])[0]
    rngs = [rng(i) for i in range(3)]
    together = Inverting(steps=20, restarts=2, lanes=3).reconstruct(seen, task, rngs, Job())
    assert [recovered.guess.labels.tolist() for recovered in together] == [[6], [2], [3, 3]]
    for i, recovered in enumerate(together):
        (alone,) = Inverting(steps=20, restarts=2).reconstruct([seen[i]], task, [rng(i)], Job())
        # Steps multiply what sums in another order round, eighty on some processors to .002.
        torch.testing.assert_close(alone.guess.inputs, recovered.guess.inputs, atol=5e-3, rtol=0)
    assert not torch.allclose(together[0].guess.inputs, together[1].guess.inputs, atol=0.1)


@pytest.mark.parametrize(
    "defense",
    [{"name": "prune", "fraction": 0.9}, {"name": "sign"}, {"name": "gaussian_noise", "std": 0.1}],
)
def test_adaptive_runs_with_each_defense(
    victim: Victim, pictures: Pictures, defense: dict[str, object]
) -> None:
    task, seen = victim(pictures(1, 6), defense=(defense,))
    (recovered,) = Inverting(steps=2, adaptive=True).reconstruct([seen], task, [rng()], Job())
    assert recovered.objective is not None
    assert recovered.objective < 1


def test_adaptive_matches_a_pruned_update_better(victim: Victim, pictures: Pictures) -> None:
    task, seen = victim(pictures(1, 6), defense=({"name": "prune", "fraction": 0.9},))
    pruned: Tensors = Prune(fraction=0.9).on_update(seen.received, rng())
    seen = replace(seen, received=pruned)
    plain, adaptive = (
        Inverting(steps=80, adaptive=flag).reconstruct([seen], task, [rng()], Job())[0]
        for flag in (False, True)
    )
    assert plain.objective is not None
    assert adaptive.objective is not None
    assert adaptive.objective < 0.5 * plain.objective


SIGN = {"name": "sign"}
MEAN_OF_SIGNS = {"name": "sign", "stage": "sample"}
PRUNE = {"name": "prune", "fraction": 0.9}
INT8 = {"name": "quantize", "kind": "int8"}
CLIP = {"name": "dp_sgd", "clip": 1.0, "noise_multiplier": 0.1}


@pytest.mark.parametrize(
    ("chain", "count", "form", "each"),
    [
        ((), 1, "cosine", False),
        (({"name": "gaussian_noise", "std": 0.1},), 2, "cosine", False),
        ((SIGN,), 1, "signs", False),
        ((SIGN,), 2, "signs", False),
        ((MEAN_OF_SIGNS,), 1, "signs", False),
        ((MEAN_OF_SIGNS,), 2, "cosine", True),
        ((PRUNE,), 2, "support", False),
        (({**PRUNE, "stage": "sample"},), 2, "ranks", True),
        (({**PRUNE, "stage": "sample"},), 1, "support", False),
        (({**PRUNE, "stage": "sample", "keep": "random"},), 2, "support", False),
        (({**PRUNE, "stage": "sample"}, PRUNE), 2, "support", False),
        (({**CLIP, "noise_multiplier": 0.0}, PRUNE), 2, "support", False),
        # What was pruned before has no sign.
        ((PRUNE, SIGN), 1, "signs", False),
        ((INT8,), 1, "interval", False),
        ((INT8,), 2, "interval", False),
        (({"name": "clip", "norm": 1.0}, INT8), 2, "interval", False),
        (({**CLIP, "noise_multiplier": 0.0}, INT8), 2, "interval", True),
        # Noise leaves no bounds, and what was pruned is not rounded.
        ((INT8, {"name": "gaussian_noise", "std": 0.1}), 1, "cosine", False),
        ((CLIP, INT8), 2, "cosine", True),
        (({"name": "quantize", "kind": "qsgd"},), 1, "cosine", False),
        ((PRUNE, INT8), 1, "support", False),
        ((INT8, SIGN), 1, "signs", False),
        (({"name": "clip", "norm": 1.0},), 2, "cosine", False),
        (({"name": "dp_client", "clip": 1.0, "noise_multiplier": 1.0},), 2, "cosine", False),
        ((CLIP,), 1, "cosine", False),
        ((CLIP,), 2, "cosine", True),
    ],
)
def test_the_loss_fits_the_defense(
    victim: Victim,
    pictures: Pictures,
    chain: tuple[dict[str, object], ...],
    count: int,
    form: str,
    each: bool,
) -> None:
    task, seen = victim(pictures(count, *range(count)), defense=chain)
    model = replay(seen, task, CPU)
    loss = matching_loss(model, seen, adaptive=True)
    assert (loss.form, loss.each) == (form, each)
    assert matching_loss(model, seen, adaptive=False) == ImageLoss(model)


@pytest.mark.parametrize(
    ("chain", "cohort", "count", "form", "each"),
    [
        ((SIGN,), 2, 2, "cosine", True),
        ((MEAN_OF_SIGNS,), 2, 2, "cosine", True),
        ((SIGN,), 2, 4, "signs", False),
        (({"name": "clip", "norm": 1.0},), 2, 2, "cosine", True),
        (({"name": "clip", "norm": 1.0},), 2, 4, "cosine", False),
        ((PRUNE,), 2, 2, "support", False),
        ((INT8,), 2, 2, "cosine", False),
    ],
)
def test_clients_of_a_cohort_defend_alone(
    victim: Victim,
    pictures: Pictures,
    chain: tuple[dict[str, object], ...],
    cohort: int,
    count: int,
    form: str,
    each: bool,
) -> None:
    batch = pictures(count, *range(count))
    task, seen = victim(batch, defense=chain, cohort=cohort)
    model, built = replay(seen, task, CPU), build_chain(chain, "defense")
    loss = matching_loss(model, seen, adaptive=True)
    assert (loss.form, loss.each) == (form, each)
    if each:
        each_one = built.on_gradient if built.per_example else built.on_update
        parts = [each_one(model.pure_gradient(batch[i]), rng()) for i in range(count)]
        found = loss.update(batch.inputs, batch.labels)
        exact = {name: torch.stack([part[name] for part in parts]).mean(0) for name in found}
        # A steep tanh stands for a sign.
        assert float(cosine_distance(found, exact)) < 0.01


def test_noise_about_signs_is_known(victim: Victim, pictures: Pictures) -> None:
    noise = {"name": "gaussian_noise", "std": 0.1}
    for chain, step_size, dither, flipped in [
        ((SIGN,), None, 0.0, False),
        ((noise, SIGN), None, 0.1, False),
        ((noise, SIGN), 0.5, 0.2, False),
        ((SIGN, noise), None, 0.0, True),
    ]:
        task, seen = victim(pictures(1, 6), defense=chain, step_size=step_size)
        loss = matching_loss(replay(seen, task, CPU), seen, adaptive=True)
        assert loss.dither == pytest.approx(dither, rel=0.05)
        assert loss.flipped is flipped


def test_sign_distance() -> None:
    signs = {"a": torch.tensor([1.0, -1.0, 0.0]), "b": torch.tensor([[-1.0]])}
    guess = {"a": torch.tensor([9.0, 1.0, 7.0]), "b": torch.tensor([[-2.0]])}
    # One of three signs is wrong, however small, and where none was received nothing counts.
    assert sign_distance(guess, signs) == pytest.approx(1 - 1 / 3)
    scaled = {name: 1e-6 * value for name, value in guess.items()}
    assert sign_distance(scaled, signs) == pytest.approx(1 - 1 / 3)
    assert sign_distance({name: 0 * value for name, value in guess.items()}, signs) == 1
    # Where most coordinates are 0, the others still have a slope.
    sparse = torch.tensor([1.0, 1.0, 0.02, *[0.0] * 6], requires_grad=True)
    sign_distance({"a": sparse}, {"a": torch.ones(9)}).backward()
    assert sparse.grad is not None
    assert sparse.grad[2] < -0.1
    silent = vmap(sign_distance)({"a": torch.zeros(2, 3)}, {"a": torch.ones(2, 3)})
    assert silent.tolist() == [1.0, 1.0]


def test_nearest() -> None:
    observed = {"a": torch.tensor([1.0, -2.0, 0.0]), "b": torch.tensor([[3.0]])}
    slack = {"a": torch.tensor(0.5), "b": torch.tensor([[0.1]])}
    inside = {"a": torch.tensor([1.2, -2.4, 0.3]), "b": torch.tensor([[2.95]])}
    scaled = {name: 1e-3 * value for name, value in inside.items()}
    # A guess within the bounds, at any scale, is next to itself.
    for guess in (inside, scaled):
        assert cosine_distance(guess, nearest(guess, observed, slack)) == pytest.approx(0, abs=1e-3)
        assert cosine_distance(guess, observed) > 5e-3
    far = nearest({"a": torch.tensor([9.0, 0.0, 0.0]), "b": torch.tensor([[9.0]])}, observed, slack)
    # Scaled by 4/18 it is 2 and 2, and both bounds are below or above.
    assert far["a"].tolist() == pytest.approx([1.5, -1.5, 0.0])
    assert far["b"].item() == pytest.approx(2.9)


@pytest.mark.parametrize("chain", [(SIGN,), (PRUNE,), (MEAN_OF_SIGNS,), (INT8,)])
def test_the_truth_loses_least(
    victim: Victim, pictures: Pictures, chain: tuple[dict[str, object], ...]
) -> None:
    batch = pictures(2, 6, 1)
    task, seen = defended(victim, batch, chain)
    model = replay(seen, task, CPU)
    aware, plain = (matching_loss(model, seen, adaptive=flag) for flag in (True, False))
    of_truth, of_other, oblivious = (
        float(loss(images, batch.labels, seen.received))
        for loss, images in (
            (aware, batch.inputs),
            (aware, 1 - batch.inputs),
            (plain, batch.inputs),
        )
    )
    assert of_truth < 0.7 * min(of_other, oblivious)
    if chain not in ((SIGN,), (MEAN_OF_SIGNS,)):  # whose tanh is no sign
        assert of_truth == pytest.approx(0, abs=1e-6)


def test_each_example_passes_the_defense_alone(victim: Victim, pictures: Pictures) -> None:
    batch = pictures(3, 6, 1, 2)
    task, seen = victim(batch, defense=(MEAN_OF_SIGNS,))
    model = replay(seen, task, CPU)
    loss = matching_loss(model, seen, adaptive=True)
    parts = [loss.chain.surrogate(model.pure_gradient(batch[i])) for i in range(3)]
    for name, value in loss.update(batch.inputs, batch.labels).items():
        mean = torch.stack([part[name] for part in parts]).mean(0)
        torch.testing.assert_close(value, mean, atol=1e-3, rtol=1e-4)


@pytest.mark.some(2)
@pytest.mark.parametrize("chain", [(SIGN,), (PRUNE,)])
def test_who_knows_the_defense_sees_more(
    victim: Victim, pictures: Pictures, chain: tuple[dict[str, object], ...]
) -> None:
    batch = pictures(1, 6)
    task, seen = defended(victim, batch, chain)
    # Little total variation, since it hides what the loss makes of a defense.
    attack = Inverting(steps=200, total_variation=3e-5, learning_rate=0.4)
    oblivious, aware = (
        replace(attack, adaptive=flag).reconstruct([seen], task, [rng()], Job())[0]
        for flag in (False, True)
    )
    errors = [(f.guess.inputs - batch.inputs).square().mean() for f in (oblivious, aware)]
    assert errors[1] < 0.7 * errors[0]
    assert errors[1] < (batch.inputs - 0.5).square().mean()


@pytest.mark.some(2)
@pytest.mark.parametrize("adaptive", [False, True])
def test_rounding_to_bytes_hides_nothing(
    victim: Victim, pictures: Pictures, adaptive: bool
) -> None:
    batch = pictures(1, 6)
    chain: tuple[dict[str, object], ...] = ({"name": "quantize", "kind": "int8"},)
    task, seen = defended(victim, batch, chain)
    attack = Inverting(steps=200, total_variation=3e-5, learning_rate=0.4, adaptive=adaptive)
    (recovered,) = attack.reconstruct([seen], task, [rng()], Job())
    grey = (batch.inputs - 0.5).square().mean()
    assert (recovered.guess.inputs - batch.inputs).square().mean() < 0.05 * grey


def test_adaptive_needs_the_defense(victim: Victim, pictures: Pictures) -> None:
    task, seen = victim(pictures(1, 6))
    message = (
        "an adaptive attack needs the client's defense, which the server "
        "does not know. Grant server_knows.defense. Without it, set adaptive = false."
    )
    with pytest.raises(CannotAttack, match=re.escape(message)):
        Inverting(adaptive=True).reconstruct([seen], task, [rng()], Job())
    assert Inverting(adaptive=True).is_adaptive
    assert not Inverting().is_adaptive


@pytest.mark.parametrize("train_mode", [False, True])
def test_batch_normalisation(victim: Victim, pictures: Pictures, train_mode: bool) -> None:
    batch = pictures(2, 6, 2, size=8)
    task, seen = victim(batch, model="resnet20", train_mode=train_mode, labels=(6, 2))
    if train_mode:
        network = task.model(seen.sent).train()
        seen = replace(seen, received=task.gradient(network, batch))
    sent = {name: value.clone() for name, value in seen.sent.items()}
    (recovered,) = Inverting(steps=1).reconstruct([seen], task, [rng()], Job())
    gradient = replay(seen, task, CPU).pure_gradient(recovered.guess)
    expected = float(cosine_distance(gradient, seen.received))
    assert recovered.objective == pytest.approx(expected, abs=1e-4)
    assert all(torch.equal(value, sent[name]) for name, value in seen.sent.items())
    truth = replay(seen, task, CPU).pure_gradient(batch)
    assert float(cosine_distance(truth, seen.received)) == pytest.approx(0, abs=1e-5)


def test_a_search_that_fitted_noise_gives_way_to_the_prior(
    victim: Victim, pictures: Pictures
) -> None:
    batch, auxiliary = pictures(1, 6), pictures(40, *range(8), *range(8), seed=1)
    task, seen = victim(batch, auxiliary=True)
    draw, job = rng(), Job(auxiliary=lambda: auxiliary)
    noisy = {k: v + 10 * torch.randn(v.shape, generator=draw) for k, v in seen.received.items()}
    (lost,) = Inverting(steps=60).reconstruct([replace(seen, received=noisy)], task, [rng()], job)
    torch.testing.assert_close(lost.guess.inputs[0], auxiliary.inputs.mean(0))
    assert lost.confidence == ("guess",)
    assert lost.note.startswith("the prior's mean is likelier")
    (recovered,) = Inverting(steps=300).reconstruct([seen], task, [rng()], job)
    assert recovered.note == ""
    prior = (auxiliary.inputs.mean(0) - batch.inputs).square().mean()
    assert (recovered.guess.inputs - batch.inputs).square().mean() < 0.2 * prior


def test_options_are_those_of_normalised_pixels() -> None:
    # A deviation of .25 makes differences of pixels four times as large.
    assert Inverting(total_variation=0.01).pixel_variation == pytest.approx(0.04)
    assert Inverting(total_variation=0.01, steps=9600).pixel_variation == pytest.approx(0.04)
    assert Inverting(total_variation=0.01, steps=600).pixel_variation == pytest.approx(0.32)


def naive(task: Task, seen: Observation, batch: Batch, start: Tensor, attack: Inverting) -> Tensor:
    """Geiping et al. 2020, equation 4 and section 5, word by word: images of one victim."""
    network = task.model(seen.sent)
    parameters = dict(network.named_parameters())
    received = torch.cat([seen.received[name].flatten() for name in parameters])
    weight = attack.total_variation * 4800 / attack.steps
    images = ((start - 0.5) / 0.25).requires_grad_()
    optimizer = torch.optim.Adam([images], lr=attack.learning_rate)
    for step in range(attack.steps):
        loss = task.loss(network, replace(batch, inputs=0.5 + 0.25 * images))
        slopes = torch.autograd.grad(loss, list(parameters.values()), create_graph=True)
        guessed = torch.cat([own.flatten() for own in slopes])
        cosine = guessed @ received / guessed.norm() / received.norm()
        rough = images.diff(dim=-1).abs().mean() + images.diff(dim=-2).abs().mean()
        (slope,) = torch.autograd.grad(1 - cosine + weight * rough, images)
        images.grad = slope.sign()
        passed = sum(step >= attack.steps * eighths // 8 for eighths in (3, 5, 7))
        optimizer.param_groups[0]["lr"] = attack.learning_rate * 0.1**passed
        optimizer.step()
        images.data.clamp_(-2, 2)
    return 0.5 + 0.25 * images.detach()


def test_it_is_the_formula_from_the_same_start(victim: Victim, pictures: Pictures) -> None:
    attack, shape = Inverting(steps=90), (1, 3, 16, 16)
    levels = []
    for i in range(3):
        batch = pictures(1, i, seed=i)
        task, seen = victim(batch)
        (recovered,) = attack.reconstruct([seen], task, [rng(i)], Job())
        (generator,) = restart_generators(rng(i), 1)
        start = (0.5 + 0.25 * torch.randn(shape, generator=generator)).clamp(0, 1)
        plain = naive(task, seen, batch, start, attack)
        errors = [
            (guess - batch.inputs).square().mean() for guess in (recovered.guess.inputs, plain)
        ]
        levels.append(-10 * torch.stack(errors).log10())
    ours, formula = torch.stack(levels).mean(0)
    assert formula > 15
    assert abs(ours - formula) < 0.3
