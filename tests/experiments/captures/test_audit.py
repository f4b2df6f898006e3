"""From tensors to a scored guess, without a run folder."""

import copy
import dataclasses
from typing import Any

import pytest
import torch

import fedsim
from fedsim.errors import CannotAttack, ConfigError
from fedsim.types import Batch
from tests.experiments.captures.conftest import SENTENCE, Held, Net, loss


@pytest.fixture(scope="module")
def victim(held: Held) -> Any:
    return fedsim.Update.of(held.model, gradients=held.gradients, tokenizer=held.tokenizer)


def test_a_sentence_is_certified_and_scored(victim: Any) -> None:
    guess = fedsim.attack(victim, "span", quiet=True)
    assert guess.texts == (SENTENCE,)
    assert guess.certified == (True,)
    scores = fedsim.score(guess, truth=["Something else.", SENTENCE])
    assert scores.values["exact_match"] == (0.0, 1.0)
    assert scores.certified == (False, True)
    assert scores.frame().rouge1.tolist() == list(scores.values["rouge1"])
    assert SENTENCE in guess._repr_html_()
    assert ">The code of the door is 4471.</span>" in scores._repr_html_()


def test_weights_tell_as_much_as_the_gradient(held: Held) -> None:
    victim = fedsim.Update.of(
        held.model, before=held.before, after=held.after, lr=0.1, tokenizer=held.tokenizer
    )
    assert "tied to transformer.wte.weight" in str(victim)
    assert "knows learning_rate" in str(victim)
    assert fedsim.attack(victim, "span", quiet=True).texts == (SENTENCE,)


def test_training_on_does_not_change_an_update(held: Held) -> None:
    model = copy.deepcopy(held.model)
    victim = fedsim.Update.of(model, gradients=held.gradients, tokenizer=held.tokenizer)
    for parameter in model.parameters():
        torch.nn.init.zeros_(parameter)
    assert victim.observation.sent["transformer.wte.weight"].any()


def test_a_refusal_names_what_a_program_can_pass() -> None:
    net = Net()
    after = {name: value * 0.9 for name, value in net.state_dict().items()}
    victim = fedsim.Update.of(
        net,
        before=net.state_dict(),
        after=after,
        loss=loss,
        image_shape=(1, 8, 8),
        optimizer="adam",
    )
    said = "or --knows local_steps=value --knows learning_rate=value"
    with pytest.raises(CannotAttack, match=said):
        fedsim.attack(victim, "dlg", quiet=True)


def test_one_example_is_read_where_more_would_need_a_bias() -> None:
    """A claim of three: without a bias nothing tells three labels, and the weight tells one."""
    torch.manual_seed(0)
    net, image = Net(bias=False), torch.rand(1, 1, 8, 8)
    value = loss(net, Batch(image, torch.tensor([3])))
    gradients = torch.autograd.grad(value, list(net.parameters()))
    victim = fedsim.Update.of(net, gradients=gradients, loss=loss, image_shape=(1, 8, 8))
    claimed = dataclasses.replace(victim, claimed_examples=3)
    guess = fedsim.attack(claimed, "inverting", steps=2, quiet=True)
    assert guess.labels == (3,)
    assert "1 example (tried" in guess.note


def test_a_wrong_claim_is_tried_and_given_up(victim: Any) -> None:
    claimed = dataclasses.replace(victim, claimed_examples=5)
    guess = fedsim.attack(claimed, "span", quiet=True)
    assert guess.certified == (True,)
    assert guess.texts == (SENTENCE,)


def test_suited_says_what_runs_and_why_the_others_refuse(victim: Any) -> None:
    suitability = fedsim.suited(victim)
    assert {"span", "embedding_rows", "lamp"} <= set(suitability.attacks)
    assert "public rows" in suitability.reasons["lti"]
    assert "guesses no example" in suitability.reasons["membership"]
    assert "dlg" in suitability.others
    assert "lti" in suitability._repr_html_()
    assert str(suitability).splitlines()[0].endswith("runs")


def test_any_network_of_images_with_a_loss() -> None:
    torch.manual_seed(0)
    net, image = Net(), torch.rand(1, 1, 8, 8)
    value = loss(net, Batch(image, torch.tensor([3])))
    gradients = torch.autograd.grad(value, list(net.parameters()))
    victim = fedsim.Update.of(net, gradients=gradients, loss=loss, image_shape=(1, 8, 8))
    guess = fedsim.attack(victim, "dlg", restarts=2, steps=60, quiet=True)
    assert guess.labels == (3,)
    assert "not known" in guess.note
    assert guess.texts == ()
    assert fedsim.score(guess, image).mean("psnr") > 15
    assert guess._repr_html_().count("<img") == 1
    with pytest.raises(ConfigError, match="not scored"):
        fedsim.score(guess, image).mean("rouge1")


@pytest.mark.parametrize(
    ("truth", "said"),
    [
        (torch.empty(0, 1, 8, 8), r"the inputs have the shape \(0, 1, 8, 8\)"),
        (torch.full((2, 1, 8, 8), -0.4), r"every number is -0\.4, which tells no range"),
    ],
    ids=["empty", "constant"],
)
def test_a_truth_of_no_example_or_no_range_is_refused(truth: torch.Tensor, said: str) -> None:
    net = Net()
    gradients = [torch.ones_like(value) for value in net.parameters()]
    victim = fedsim.Update.of(net, gradients=gradients, loss=loss, image_shape=(1, 8, 8))
    guess = fedsim.attack(victim, "dlg", restarts=1, steps=1, quiet=True)
    with pytest.raises(ConfigError, match=f"truth: {said}"):
        fedsim.score(guess, truth)


def test_images_are_as_many_as_claimed_and_the_missing_fact_is_named() -> None:
    torch.manual_seed(0)
    net, batch = Net(), Batch(torch.rand(6, 1, 8, 8), torch.tensor([0, 1, 2, 3, 0, 1]))
    before = {name: value.clone() for name, value in net.state_dict().items()}
    gradients = torch.autograd.grad(loss(net, batch), list(net.parameters()))
    after = {
        name: value - 0.1 * gradient
        for (name, value), gradient in zip(before.items(), gradients, strict=True)
    }
    given: Any = {"loss": loss, "image_shape": (1, 8, 8), "before": before, "after": after}
    for knows in ({}, {"lr": 0.1}, {"lr": 0.1, "local_steps": 1}):
        known = fedsim.Update.of(net, **given, **knows)
        guess = fedsim.attack(
            dataclasses.replace(known, claimed_examples=6), "inverting", steps=2, quiet=True
        )
        assert len(guess.labels) == 6
        assert "the client's claim" in guess.note
        assert ("local_steps=1" in guess.note) == ("local_steps" not in knows)
        assert ("learning_rate=" in guess.note) == ("lr" not in knows)


@pytest.mark.parametrize(("name", "options"), [("dlg", {"restarts": 2}), ("inverting", {})])
def test_a_picture_forms_while_its_attack_runs(name: str, options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    net, image = Net(), torch.rand(1, 1, 8, 8)
    gradients = torch.autograd.grad(
        loss(net, Batch(image, torch.tensor([3]))), list(net.parameters())
    )
    seen: list[tuple[int, float, Any]] = []
    victim = fedsim.Update.of(
        net, gradients=gradients, loss=loss, image_shape=(1, 8, 8), num_examples=1
    )
    guess = fedsim.attack(
        victim, name, steps=40, quiet=True, on_step=lambda *step: seen.append(step), **options
    )
    assert {tuple(picture.shape) for _, _, picture in seen} == {(1, 1, 8, 8)}
    assert len({float(picture.sum()) for _, _, picture in seen}) > 1
    assert seen[-1][1] <= seen[0][1]
    if name == "dlg":  # which smooths nothing at its end
        assert torch.allclose(seen[-1][2].clamp(0, 1).float(), guess.images, atol=1e-5)


def test_the_import_offers_the_interface() -> None:
    assert "attack" in dir(fedsim)
    with pytest.raises(AttributeError, match="no_such"):
        _ = fedsim.no_such
