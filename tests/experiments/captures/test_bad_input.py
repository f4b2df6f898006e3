"""Whatever a notebook hands over wrongly is answered by one line that names the fix."""

from collections import OrderedDict
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import nn

import fedsim
from attacks.texts.lamp import LAMP
from fedsim.errors import FedsimError
from fedsim.models import TEXT_MODELS, transformer
from tests.experiments.captures.conftest import Held, Net, loss


class Case(NamedTuple):
    """A mistake, what is said to be wrong, and the fix."""

    make: Callable[[Held], Any]
    wrong: str
    fix: str


def text(held: Held, **changes: Any) -> Any:
    given = {"gradients": held.gradients, "tokenizer": held.tokenizer} | changes
    return fedsim.Update.of(given.pop("model", held.model), **given)


def image(**changes: Any) -> Any:
    net = Net()
    given = {
        "gradients": [torch.ones_like(p) for p in net.parameters()],
        "loss": loss,
        "image_shape": (1, 8, 8),
    } | changes
    return fedsim.Update.of(given.pop("model", net), **given)


def other_tokenizer() -> Any:
    tokenizer = transformer.tokenizer(str(TEXT_MODELS["tiny-bert"]))
    tokenizer.add_tokens([f"<{number}>" for number in range(1000)])
    return tokenizer


def bag() -> nn.Module:
    return nn.Sequential(OrderedDict(e=nn.EmbeddingBag(50, 4), h=nn.Linear(4, 2)))


CASES = {
    "nothing": Case(lambda h: text(h, gradients=None), "either gradients=", "or before= and after"),
    "both": Case(lambda h: text(h, after=h.after), "either gradients=", "or before= and after"),
    "no before": Case(lambda h: text(h, gradients=None, after=h.after), "before:", "a copy of"),
    "aliased": Case(
        lambda h: text(h, gradients=None, before=h.before, after=h.before), "equals", "Copy the"
    ),
    "zero gradients": Case(
        lambda h: text(h, gradients=[g * 0 for g in h.gradients]), "all are zero", "backward()"
    ),
    "a word among them": Case(
        lambda h: text(h, gradients=["x", *h.gradients[1:]]), "str, not a tensor", "give them zeros"
    ),
    "NaN": Case(
        lambda h: text(h, gradients=[g * float("nan") for g in h.gradients]),
        "NaN",
        "whose loss is finite",
    ),
    "half": Case(lambda h: text(h, gradients=h.gradients[:9]), "9 tensors came", "Pass all"),
    "no list": Case(lambda h: text(h, gradients=3), "got int", "a dictionary of tensors"),
    "one tensor": Case(
        lambda h: text(h, gradients=torch.zeros(3, 3)), "got Tensor", "a dictionary of tensors"
    ),
    "one vector": Case(
        lambda h: text(h, gradients=torch.zeros(3)), "tensor 0 has the shape (3,)", "Pass the model"
    ),
    "empty": Case(lambda h: text(h, gradients=[]), "no tensor", "what the client sent"),
    "swapped": Case(
        lambda h: text(h, gradients=h.gradients[::-1]), "tensor 0 has the shape", "in its order"
    ),
    "unknown name": Case(
        lambda h: text(h, gradients={**h.before, "lm.head": torch.ones(2)}), "'lm.head'", "Pass the"
    ),
    "wrong shape": Case(
        lambda h: text(h, gradients={"transformer.wte.weight": torch.ones(2, 2)}),
        "(2, 2)",
        "Pass the model",
    ),
    "no adapters' base": Case(
        lambda h: text(
            h,
            model=str(TEXT_MODELS["tiny-gpt2"]),
            gradients=None,
            before=dict(list(h.before.items())[:3]),
            after=dict(list(h.after.items())[:3]),
        ),
        "not on the wire",
        "base=model, or --base",
    ),
    "no tokenizer": Case(lambda h: text(h, tokenizer=None), "needs one", "Pass tokenizer="),
    "other tokenizer": Case(
        lambda h: text(h, tokenizer=other_tokenizer()), "tokens, but the embedding", "clients use"
    ),
    "no tokenizer at all": Case(lambda h: text(h, tokenizer=3), "is no fast", "AutoTokenizer"),
    "headless": Case(
        lambda h: text(h, model=h.model.transformer), "what GPT2Model learns", "Pass task="
    ),
    "unknown task": Case(lambda h: text(h, task="clasification"), "'clasif", "Did you mean"),
    "too long": Case(lambda h: text(h, max_length=999), "at most 128", "Lower it"),
    "unknown fact": Case(lambda h: text(h, label=[1]), "'label' is no fact", "Did you mean 'lab"),
    "no such class": Case(lambda h: image(labels=[7]), "not all classes", "Leave out labels"),
    "count": Case(lambda h: image(labels=[1, 2], num_examples=3), "cannot be", "at least 1"),
    "lr": Case(lambda h: text(h, lr=-1.0), "not positive", "Leave it out"),
    "no loss": Case(lambda h: image(loss=None), "that of Net is not known", "Pass it, for ex"),
    "loss fails": Case(lambda h: image(loss=lambda m, b: m(b.x)), "fails on one", "batch.inputs"),
    "loss is a vector": Case(
        lambda h: image(loss=lambda m, b: m(b.inputs)), ", not a scalar", "mean over"
    ),
    "loss cannot be found": Case(lambda h: image(loss="nowhere:loss"), "cannot be", "install it"),
    "no shape": Case(lambda h: image(image_shape=()), "it is not known", "image_shape=(3, 32"),
    "one number": Case(lambda h: image(image_shape=8), "8 is not that of", "image_shape=(3, 32"),
    "other shape": Case(lambda h: image(image_shape=(3, 8, 8)), "does not take", "that it takes"),
    "codes": Case(lambda h: image(model=bag()), "looks up codes in 'e'", "rows of 'e.weight'"),
    "codes, no shape": Case(lambda h: image(model=bag(), image_shape=()), "'e'", "that its update"),
    "no model": Case(lambda h: image(model=3), "got int", "Pass a torch.nn.Module"),
    "text as image": Case(lambda h: image(tokenizer=3), "Net is no text model", "leave tok"),
    "no update": Case(lambda h: fedsim.attack(h.model, "span"), "got GPT2LM", "Update.of(model"),
    "no attack": Case(lambda h: fedsim.attack(text(h), "spam"), "'spam'", "Did you mean 'span'?"),
    "steps": Case(lambda h: fedsim.attack(text(h), "lamp", steps=-3), "steps: -3", "greater than"),
    "built wrongly": Case(lambda h: fedsim.attack(text(h), LAMP(steps=-3)), "steps: -3", "greater"),
    "no option": Case(lambda h: fedsim.attack(text(h), "lamp", stepz=3), "no such", "'steps'?"),
    "budget": Case(lambda h: fedsim.attack(text(h), "span", budget=0), "no time", "above 0"),
    "other data": Case(lambda h: fedsim.attack(text(h), "dlg"), "takes text", "suited(victim)"),
    "learned": Case(lambda h: fedsim.attack(text(h), "lti"), "public rows", "[auxiliary]"),
    "no guess": Case(lambda h: fedsim.score(text(h), ["a"]), "got Update", "fedsim.attack("),
    "no captures": Case(lambda h: fedsim.captured("."), "holds no captures", "Name the folder"),
    "no run": Case(lambda h: fedsim.load("."), "no run folder", "Correct the path"),
}


@pytest.mark.parametrize("name", CASES)
def test_a_mistake_is_answered_in_one_line(name: str, held: Held) -> None:
    case = CASES[name]
    with pytest.raises(FedsimError) as caught:
        case.make(held)
    said = str(caught.value)
    assert case.wrong in said
    assert case.fix in said
    assert "\n" not in said


TRUTHS: list[tuple[object, str, str]] = [
    (torch.zeros(1, 1, 9, 9), "(1, 1, 9, 9)", "Pass the clients' examples"),
    (np.full((1, 1, 8, 8), 2.0), "pixels from 2.00", "in [0, 1]"),
    (["a"], "takes images", "Pass a tensor"),
    ((torch.zeros(1, 1, 8, 8), [1, 2]), "2 labels", "one for each"),
]


@pytest.mark.parametrize(("truth", "wrong", "fix"), TRUTHS)
def test_a_wrong_truth_is_answered_in_one_line(truth: object, wrong: str, fix: str) -> None:
    guess = fedsim.attack(image(num_examples=1), "prior_only", quiet=True)
    with pytest.raises(FedsimError) as caught:
        fedsim.score(guess, truth)
    assert wrong in str(caught.value)
    assert fix in str(caught.value)


def test_a_network_of_text_without_transformers_is_asked_for_its_loss() -> None:
    with pytest.raises(FedsimError, match="loss: that of Linear"):
        fedsim.Update.of(nn.Linear(2, 2), gradients=[torch.ones(2, 2)])
