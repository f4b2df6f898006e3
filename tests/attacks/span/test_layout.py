"""Texts as applications set them: start and end tokens, padding, positions, length."""

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
import transformers
from packaging.version import Version
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    BertConfig,
    BertForSequenceClassification,
)

import fedsim
from attacks.tokens.layout import RIGHT
from benchmarks.family_cases import SHAPES
from experiments.captures.update import Update
from fedsim.data.rows import load_rows
from fedsim.models import TEXT_MODELS, transformer

A, B = 3, 7
"""Sentences of the built-in data."""
END = 0
"""The end token of the tiny tokenizer, which is also its start and its padding."""
FAMILIES = pytest.mark.parametrize("family", ["gpt2", "llama", "opt"])


@cache
def client(family: str) -> tuple[Any, Any]:
    """A random model with transformers' fused attention, and the tiny tokenizer."""
    tokenizer = transformer.tokenizer(str(TEXT_MODELS["tiny-gpt2"]))
    key = "n_positions" if family == "gpt2" else "max_position_embeddings"
    config = AutoConfig.for_model(**SHAPES[family] | {"model_type": family, key: 64})
    config.vocab_size, config.pad_token_id = len(tokenizer), None
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config).float().eval(), tokenizer


def text(row: int) -> str:
    (line,) = load_rows("sentences", f"train[{row}:{row + 1}]", modality="text").inputs
    return str(line)


def attacked(
    family: str,
    ids: Any,
    labels: Any = None,
    max_length: int = 0,
    attack: str = "span",
    **inputs: Any,
) -> Any:
    """What an attack makes of the client's gradient, of one example for each row of ``ids``."""
    model, tokenizer = client(family)
    rows = torch.tensor(ids)
    targets = rows if labels is None else torch.tensor(labels)
    tensors = {name: torch.tensor(value) for name, value in inputs.items()}
    loss = model(input_ids=rows, labels=targets, **tensors).loss
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    update = Update.of(
        model,
        gradients=list(gradients),
        tokenizer=tokenizer,
        num_examples=len(rows),
        max_length=max_length,
    )
    return fedsim.attack(update, attack, quiet=True)


def encoded(family: str, row: int) -> list[int]:
    ids: list[int] = client(family)[1](text(row)).input_ids
    return ids


@pytest.mark.some(4)
@pytest.mark.parametrize(("starts", "ends"), [(0, 0), (0, 1), (1, 1), (2, 1), (1, 0)])
@FAMILIES
def test_start_and_end_tokens(family: str, starts: int, ends: int) -> None:
    guess = attacked(family, [[END] * starts + encoded(family, A) + [END] * ends])
    assert guess.texts == (text(A),)
    assert guess.confidence == ("certified",)


def need_blind_padding(family: str) -> None:
    """Skip versions of transformers in which the pads before a text see the text behind them."""
    least = {"gpt2": "4.54", "opt": "5"}.get(family, "0")
    if Version(transformers.__version__) < Version(least):
        pytest.skip(f"{family} of transformers before {least} does not mask what padding sees")


@pytest.mark.some(15)
@pytest.mark.parametrize("positions", [False, True])
@pytest.mark.parametrize("count", [1, 2])
@FAMILIES
def test_padding_on_the_left(family: str, count: int, *, positions: bool) -> None:
    need_blind_padding(family)
    lines = [[*encoded(family, row), END] for row in (A, B)[:count]]
    size = max(map(len, lines)) + (count == 1) * 5
    pads = [size - len(line) for line in lines]
    ids = [[END] * n + line for n, line in zip(pads, lines, strict=True)]
    labels = [[-100] * n + line for n, line in zip(pads, lines, strict=True)]
    mask = [[0] * n + [1] * len(line) for n, line in zip(pads, lines, strict=True)]
    placed = [[1] * n + list(range(len(line))) for n, line in zip(pads, lines, strict=True)]
    more: dict[str, Any] = {"position_ids": placed} if positions else {}
    guess = attacked(family, ids, labels, attention_mask=mask, **more)
    assert sorted(guess.texts) == sorted(text(row) for row in (A, B)[:count])
    assert set(guess.confidence) == {"certified"}


@FAMILIES
def test_first_words_without_a_label(family: str) -> None:
    line = [*encoded(family, A), END]
    ids, mask = [[END] * 4 + line], [[0] * 4 + [1] * len(line)]
    guess = attacked(family, ids, [[-100] * 5 + line[1:]], attention_mask=mask)
    assert guess.texts == (text(A),)
    assert guess.confidence == ("certified",)


@pytest.mark.parametrize("silent", [False, True])
def test_the_rows_of_positions_show_padding_on_the_left(*, silent: bool) -> None:
    need_blind_padding("gpt2")
    line = [*encoded("gpt2", A), END]
    ids, mask = [[END] * 4 + line], [[0] * 4 + [1] * len(line)]
    labels = [[-100] * (4 + silent) + line[silent:]]
    guess = attacked("gpt2", ids, labels, attack="embedding_rows", attention_mask=mask)
    assert guess.texts == (text(A),)
    assert guess.confidence == ("certified",)


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_more_tokens_than_attacks_look_for(family: str) -> None:
    ids = [*encoded(family, A), *encoded(family, B)]
    guess = attacked(family, [[*ids, END]], max_length=12)
    assert guess.texts == (text(A) + text(B),)
    assert guess.confidence == ("certified",)


@pytest.mark.some(3)
@FAMILIES
def test_a_run_of_one_token_is_no_sentence(family: str) -> None:
    guess = attacked(family, [[*encoded(family, A)[:1] * 4, END]])
    lines = zip(guess.texts, guess.confidence, strict=True)
    right = client(family)[1].decode(encoded(family, A)[:1] * 4)
    assert all(line == right or level == "guess" for line, level in lines)


@pytest.mark.slow
def test_what_is_missing_is_said() -> None:
    model, tokenizer = client("llama")
    line = torch.tensor([[*encoded("llama", A), END]])
    loss = model(input_ids=line, labels=line).loss
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    noisy = [g + 1e-4 * g.abs().max() * torch.randn_like(g) for g in gradients[-2:]]
    update = Update.of(
        model, gradients=[*gradients[:-2], *noisy], tokenizer=tokenizer, num_examples=2
    )
    guess = fedsim.attack(update, "span", quiet=True)
    assert "certified" not in guess.confidence
    assert "1 of 2 examples found" in guess.note


@pytest.mark.some(4)
@pytest.mark.parametrize("attack", ["span", "embedding_rows"])
@pytest.mark.parametrize(("starts", "ends"), [(0, 0), (0, 1), (1, 0), (1, 1)])
def test_an_encoder_without_its_start_or_end(attack: str, starts: int, ends: int) -> None:
    tokenizer: Any = transformer.tokenizer(str(TEXT_MODELS["tiny-bert"]))
    torch.manual_seed(0)
    shape = SHAPES["bert"] | {"vocab_size": len(tokenizer)}
    model: Any = BertForSequenceClassification(BertConfig(**shape)).eval()
    first, *ids, last = tokenizer(text(A)).input_ids
    rows = torch.tensor([[first] * starts + ids + [last] * ends])
    loss = model(input_ids=rows, labels=torch.tensor([1])).loss
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    update = Update.of(model, gradients=list(gradients), tokenizer=tokenizer, num_examples=1)
    guess = fedsim.attack(update, attack, quiet=True)
    assert guess.texts == (tokenizer.decode(ids),)
    assert (guess.confidence, guess.labels) == (("certified",), (1,))


PROMPT = 11
"""A further sentence of the built-in data."""


def padded(lines: list[list[int]], size: int, fill: int) -> list[list[int]]:
    return [line + [fill] * (size - len(line)) for line in lines]


@pytest.mark.some(9)
@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_prompts_without_labels(family: str, count: int, side: str) -> None:
    prompts = [encoded(family, row)[:6] for row in (PROMPT, A)][:count]
    answers = [[*encoded(family, row)[:7], END] for row in (B, PROMPT)][:count]
    lines = [p + a for p, a in zip(prompts, answers, strict=True)]
    labels = [[-100] * len(p) + a for p, a in zip(prompts, answers, strict=True)]
    size = max(map(len, lines)) + 3
    ids, targets = padded(lines, size, END), padded(labels, size, -100)
    mask = padded([[1] * len(line) for line in lines], size, 0)
    if side == "left":
        places = [size - len(line) for line in lines]
        ids, targets, mask = (
            [row[-n:] + row[:-n] for row, n in zip(rows, places, strict=True)]
            for rows in (ids, targets, mask)
        )
    guess = attacked(family, ids, targets, attention_mask=mask)
    tokenizer = client(family)[1]
    assert sorted(guess.texts) == sorted(tokenizer.decode(line[:-1]) for line in lines)
    assert set(guess.confidence) == {"certified"}


@pytest.mark.some(2)
@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_padding_whose_labels_are_not_hidden(family: str, count: int) -> None:
    lines = [[*encoded(family, row), END] for row in (A, B)[:count]]
    size = max(map(len, lines)) + 5
    mask = padded([[1] * len(line) for line in lines], size, 0)
    guess = attacked(family, padded(lines, size, END), attention_mask=mask)
    assert sorted(guess.texts) == sorted(text(row) for row in (A, B)[:count])
    assert set(guess.confidence) == {"certified"}


def each_mean(logits: Tensor, ids: Tensor) -> Tensor:
    """The mean of each text, as gradient accumulation has it."""
    return cross_entropy(logits[0, :-1], ids[0, 1:])


def smoothed(logits: Tensor, ids: Tensor) -> Tensor:
    return cross_entropy(logits[:, :-1].mT, ids[:, 1:], label_smoothing=0.1)


def rising(logits: Tensor, ids: Tensor) -> Tensor:
    """Later tokens weigh more."""
    losses = cross_entropy(logits[:, :-1].mT, ids[:, 1:], reduction="none")
    return (losses * torch.linspace(0.5, 1, losses.shape[1])).mean()


@pytest.mark.some(5)
@pytest.mark.parametrize("loss", [each_mean, smoothed, rising])
@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_losses_that_weigh_tokens(family: str, loss: Callable[[Tensor, Tensor], Tensor]) -> None:
    model, tokenizer = client(family)
    line = torch.tensor([[*encoded(family, A)[:9], END]])
    start = 1 if loss is rising else 0  # what both begin with shows the sum of its weights
    other = torch.tensor([[*encoded(family, B)[start:8], END]])
    logits = [model(input_ids=ids).logits for ids in (line, other)]
    value = 0.3 * loss(logits[0], line).mean() + 0.7 * loss(logits[1], other).mean()
    gradients = torch.autograd.grad(value, list(model.parameters()))
    update = Update.of(model, gradients=list(gradients), tokenizer=tokenizer, num_examples=2)
    guess = fedsim.attack(update, "span", quiet=True)
    assert sorted(guess.texts) == sorted(tokenizer.decode(row[0, :-1]) for row in (line, other))
    assert guess.confidence == ("certified", "certified")


@pytest.mark.some(9)
@pytest.mark.parametrize("ends", [0, 1])
@pytest.mark.parametrize("hidden", [False, True])
@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_texts_packed_into_a_row_that_do_not_see_one_another(
    family: str, ends: int, *, hidden: bool
) -> None:
    """As collators for packed rows have it, with or without a label for each first token."""
    model, tokenizer = client(family)
    lines = [encoded(family, row)[:8] + [END] * ends for row in (A, B, PROMPT)]
    text_of = torch.tensor([i for i, line in enumerate(lines) for _ in line])
    ids = torch.tensor([[token for line in lines for token in line]])
    firsts = torch.tensor([[place for line in lines for place in range(len(line))]])
    sees = (text_of[:, None] == text_of) & torch.ones(len(text_of), len(text_of)).tril().bool()
    mask = torch.zeros(sees.shape).masked_fill(~sees, torch.finfo(torch.float32).min)[None, None]
    labels = ids.masked_fill(firsts == 0, -100) if hidden else ids
    loss = model(input_ids=ids, labels=labels, attention_mask=mask, position_ids=firsts).loss
    gradients = list(torch.autograd.grad(loss, list(model.parameters())))
    update = Update.of(model, gradients=gradients, tokenizer=tokenizer, num_examples=1)
    guess = fedsim.attack(update, "span", quiet=True)
    texts = (tokenizer.decode(line, skip_special_tokens=True) for line in lines)
    assert sorted(guess.texts) == sorted(texts)
    assert guess.confidence == ("certified",) * 3
    assert "3 texts that do not see one another, packed into 1 row" in guess.note


@pytest.mark.some(2)
@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_packed_texts_that_see_one_another_while_positions_restart(family: str, count: int) -> None:
    """As collators that flatten rows leave it where attention is not reset."""
    lines = [[*encoded(family, row)[:6], END] for row in (A, B, PROMPT)[:count]]
    ids = [[token for line in lines for token in line]]
    firsts = [[place for line in lines for place in range(len(line))]]
    mask = [[1] * len(ids[0])]
    guess = attacked(family, ids, position_ids=firsts, attention_mask=mask)
    tokenizer = client(family)[1]
    assert guess.texts == (tokenizer.decode(ids[0], skip_special_tokens=True),)
    assert guess.confidence == ("certified",)


@pytest.mark.some(2)
@pytest.mark.parametrize("separator", ["\n", ""])
@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_positions_may_restart_behind_any_token(family: str, separator: str) -> None:
    tokenizer = client(family)[1]
    first, second = (encoded(family, row)[:6] for row in (A, B))
    first += tokenizer(separator).input_ids if separator else []
    ids, firsts = [[*first, *second]], [[*range(len(first)), *range(len(second))]]
    guess = attacked(family, ids, position_ids=firsts, attention_mask=[[1] * len(ids[0])])
    assert guess.texts == (tokenizer.decode(ids[0]),)
    assert guess.confidence == ("certified",)


@pytest.mark.slow
def test_several_texts_in_the_span_of_a_row_are_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They do not see one another, and a learned table of positions counts the row's."""
    monkeypatch.setattr("attacks.span.exact.search.left_layouts", lambda *args, **more: [RIGHT])
    model, tokenizer = client("gpt2")
    lines = [encoded("gpt2", row)[:6] for row in (A, B)]
    ids = torch.tensor([[token for line in lines for token in line]])
    text_of = torch.tensor([i for i, line in enumerate(lines) for _ in line])
    sees = (text_of[:, None] == text_of) & torch.ones(len(text_of), len(text_of)).tril().bool()
    mask = torch.zeros(sees.shape).masked_fill(~sees, torch.finfo(torch.float32).min)[None, None]
    loss = model(input_ids=ids, labels=ids, attention_mask=mask).loss
    gradients = list(torch.autograd.grad(loss, list(model.parameters())))
    update = Update.of(model, gradients=gradients, tokenizer=tokenizer, num_examples=1)
    guess = fedsim.attack(update, "span", quiet=True)
    assert guess.texts[0] in (tokenizer.decode(lines[0]), tokenizer.decode(lines[1][:-1]))
    assert guess.confidence == ("in_span",)
    assert "2 lines lie in the span of 1 row" in guess.note
