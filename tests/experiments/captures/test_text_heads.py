"""Heads of text models that do not tell one class from others."""

from typing import Any

import pytest
import torch
import transformers

import fedsim
from benchmarks.family_cases import SHAPES
from experiments.captures.update import Update
from fedsim.errors import CannotAttack, ConfigError
from fedsim.models import TEXT_MODELS, transformer
from tests.experiments.captures.conftest import SENTENCE, Held

TEXTS = ("We counted fourteen nests.", "The cellist broke a string and laughed.")
TOKENIZER = transformer.tokenizer(str(TEXT_MODELS["tiny-bert"]))
HEADS: dict[str, tuple[dict[str, Any], list[list[float]]]] = {
    "regression": ({"num_labels": 1}, [[3.7], [-1.2]]),
    "several numbers": ({"num_labels": 3, "problem_type": "regression"}, [[1.0, 0, 2], [0, 5, 1]]),
    "several classes": (
        {"num_labels": 4, "problem_type": "multi_label_classification"},
        [[1.0, 0, 1, 0], [0, 0, 0, 1]],
    ),
}


def bert(head: str, **settings: Any) -> Any:
    torch.manual_seed(0)
    shape = SHAPES["bert"] | {"vocab_size": len(TOKENIZER), **settings}
    return getattr(transformers, f"BertFor{head}")(transformers.BertConfig(**shape)).eval()


def gradients(model: Any, loss: torch.Tensor) -> list[torch.Tensor]:
    parameters = list(model.parameters())
    parts = torch.autograd.grad(loss, parameters, allow_unused=True)
    pairs = zip(parts, parameters, strict=True)
    return [torch.zeros_like(p) if part is None else part for part, p in pairs]


def update(head: str, count: int) -> Update:
    settings, targets = HEADS[head]
    model = bert("SequenceClassification", **settings)
    batch = TOKENIZER(list(TEXTS[:count]), return_tensors="pt", padding=True)
    loss = model(**batch, labels=torch.tensor(targets[:count])).loss
    return Update.of(
        model, gradients=gradients(model, loss), tokenizer=TOKENIZER, num_examples=count
    )


@pytest.mark.some(5)
@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("head", HEADS)
def test_texts_are_proven_and_no_class_is_named(head: str, count: int) -> None:
    guess = fedsim.attack(update(head, count), "span", quiet=True)
    right = TOKENIZER(list(TEXTS[:count]), add_special_tokens=False).input_ids
    assert sorted(guess.texts) == sorted(map(TOKENIZER.decode, right))
    assert guess.confidence == ("certified",) * count
    assert guess.labels == ()
    if count == 1:
        rows = fedsim.attack(update(head, 1), "embedding_rows", quiet=True)
        assert (rows.confidence, rows.labels) == (("certified",), ())


@pytest.mark.some(2)
@pytest.mark.parametrize("head", HEADS)
def test_targets_are_read_off_the_head(head: str) -> None:
    targets = dict(zip(TEXTS, HEADS[head][1], strict=True))
    guess = fedsim.attack(update(head, 2), "span", quiet=True)
    right = [targets[next(t for t in TEXTS if t[3:9] in text)] for text in guess.texts]
    if head == "several classes":
        shown = "; ".join(", ".join(str(i) for i, y in enumerate(own) if y) for own in right)
        assert f"classes: {shown}" in guess.note
        return
    _, _, read = guess.note.partition("targets, if the loss is the mean squared error: ")
    values = [[float(y) for y in own.split(", ")] for own in read.split("; ")]
    assert torch.allclose(torch.tensor(values), torch.tensor(right), atol=2e-3)


def test_another_text_is_not_proven() -> None:
    seen = update("regression", 1)
    name = "bert.encoder.layer.1.intermediate.dense.weight"
    seen.observation.received[name] = seen.observation.received[name].roll(1, 0)
    assert fedsim.attack(seen, "span", quiet=True).confidence == ("in_span",)


@pytest.mark.parametrize("attack", ["lamp", "tag", "dlg_text"])
def test_searches_that_need_a_class_say_so(attack: str) -> None:
    with pytest.raises(CannotAttack, match=r"learns numbers.*'span'"):
        fedsim.attack(update("regression", 1), attack, quiet=True)


@pytest.mark.parametrize("task", ["", "classification"])
@pytest.mark.parametrize(
    ("head", "what"),
    [("TokenClassification", "token classification"), ("QuestionAnswering", "question answering")],
)
def test_heads_that_are_not_supported(head: str, what: str, task: str) -> None:
    model = bert(head)
    zeros = [torch.ones_like(value) for value in model.parameters()]
    with pytest.raises(ConfigError, match=f"is for {what}") as error:
        Update.of(model, gradients=zeros, tokenizer=TOKENIZER, task=task)
    assert len(str(error.value)) < 200


ONE, TWO = torch.tensor([1]), torch.tensor([2])
OTHER_HEADS: dict[str, Any] = {
    "TokenClassification": lambda model, ids: model(input_ids=ids, labels=ids % 2).loss,
    "QuestionAnswering": lambda model, ids: (
        model(input_ids=ids, start_positions=ONE, end_positions=TWO).loss
    ),
    "NextSentencePrediction": lambda model, ids: model(input_ids=ids, labels=ONE).loss,
    "MultipleChoice": lambda model, ids: model(input_ids=ids[:, None]).logits.square().sum(),
}


@pytest.mark.some(6)
@pytest.mark.parametrize("head", OTHER_HEADS)
def test_the_encoder_alone_tells_the_texts_of_such_heads(head: str) -> None:
    """As their refusal says."""
    model = bert(head)
    loss = OTHER_HEADS[head](model, TOKENIZER([TEXTS[1]], return_tensors="pt").input_ids)
    names = [name for name, _ in model.named_parameters()]
    whole = dict(zip(names, gradients(model, loss), strict=True))
    other = bert("SequenceClassification", num_labels=2)
    other.load_state_dict(
        {k: v for k, v in model.state_dict().items() if k.startswith("bert.")}, strict=False
    )
    encoder = {name: value for name, value in whole.items() if name.startswith("bert.")}
    victim = Update.of(other, gradients=encoder, tokenizer=TOKENIZER, num_examples=1)
    guess = fedsim.attack(victim, "span", quiet=True)
    right = TOKENIZER(TEXTS[1], add_special_tokens=False).input_ids
    assert guess.texts == (TOKENIZER.decode(right),)
    assert guess.confidence == ("in_span",)


def test_a_loss_of_a_text_model_is_refused() -> None:
    model = bert("SequenceClassification")
    ones = [torch.ones_like(value) for value in model.parameters()]
    with pytest.raises(ConfigError, match=r"loss: .* Leave loss out"):
        Update.of(model, gradients=ones, tokenizer=TOKENIZER, loss=lambda *_: torch.zeros(()))


def test_unknown_tensors_are_compared_with_the_nearest() -> None:
    model = bert("SequenceClassification")
    named = {name: torch.ones_like(value) for name, value in model.named_parameters()}
    named["classifier.weights"] = named.pop("classifier.weight")
    with pytest.raises(ConfigError, match=r"nearest are classifier\.weight") as error:
        Update.of(model, gradients=named, tokenizer=TOKENIZER)
    assert len(str(error.value)) < 300


@pytest.mark.parametrize("named", ["image_shape", "input_shape", "input_range"])
def test_what_images_have_is_not_for_a_text_model(held: Held, named: str) -> None:
    given: Any = {named: (0.0, 1.0)}
    with pytest.raises(ConfigError, match=f"{named}: .* Leave {named} out"):
        Update.of(held.model, gradients=held.gradients, tokenizer=held.tokenizer, **given)


@pytest.mark.parametrize("factor", [1.0, -1.0, -5.0])
def test_a_language_models_gradient_tells_its_sign(held: Held, factor: float) -> None:
    gradients = [factor * gradient for gradient in held.gradients]
    victim = fedsim.Update.of(
        held.model, gradients=gradients, tokenizer=held.tokenizer, num_examples=1
    )
    assert ("turned" in victim.reading.codes) == (factor < 0)
    guess = fedsim.attack(victim, "span", quiet=True)
    assert (guess.texts, guess.certified) == ((SENTENCE,), (True,))
