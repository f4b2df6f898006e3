"""Pairs of sentences: types of tokens, and an end token that stands inside."""

from functools import cache
from typing import Any

import pytest
import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoConfig, AutoModelForSequenceClassification

import fedsim
from attacks.tokens.segments import Segments, types_by_place
from benchmarks.family_cases import SHAPES
from experiments.captures.update import Update
from fedsim.data.rows import load_rows
from fedsim.models import TEXT_MODELS, transformer
from fedsim.store.capture import batch_from, batch_tensors
from fedsim.types import Batch, joined

PAIRS = ((3, 7), (11, 30))
"""Rows of the built-in data, whose first words make the sentences of a pair."""


@cache
def client(family: str) -> tuple[Any, Any]:
    tokenizer = transformer.tokenizer(str(TEXT_MODELS["tiny-bert"]))
    shape = SHAPES[family] | {"model_type": family, "max_position_embeddings": 64}
    config = AutoConfig.for_model(**shape, vocab_size=len(tokenizer))
    config.pad_token_id = tokenizer.pad_token_id
    torch.manual_seed(0)
    return AutoModelForSequenceClassification.from_config(config).float().eval(), tokenizer


def sentence(row: int) -> list[int]:
    (line,) = load_rows("sentences", f"train[{row}:{row + 1}]", modality="text").inputs
    ids: list[int] = client("bert")[1](str(line)[:20], add_special_tokens=False).input_ids
    return ids


def pair(rows: tuple[int, int], between: int = 1) -> tuple[list[int], list[int]]:
    """Token ids and types ``[CLS] a [SEP] b [SEP]``, with so many ends between."""
    start, end = client("bert")[1]("").input_ids
    first, second = ([*sentence(row), end] for row in rows)
    first = [start, *first, *[end] * (between - 1)]
    return first + second, [0] * len(first) + [1] * len(second)


def attacked(family: str, lines: list[list[int]], types: list[list[int]], attack: str) -> Any:
    model, tokenizer = client(family)
    ids, mask, kinds = (
        pad_sequence([torch.tensor(line) for line in part], batch_first=True)
        for part in (lines, [[1] * len(line) for line in lines], types)
    )
    more = {} if family in {"distilbert", "mpnet"} else {"token_type_ids": kinds}
    labels = torch.tensor([1, 0])[: len(lines)]
    loss = model(input_ids=ids, attention_mask=mask, labels=labels, **more).loss
    gradients = list(torch.autograd.grad(loss, list(model.parameters())))
    update = Update.of(model, gradients=gradients, tokenizer=tokenizer, num_examples=len(lines))
    return fedsim.attack(update, attack, quiet=True)


def read(lines: list[list[int]]) -> list[str]:
    return sorted(client("bert")[1].decode(line, skip_special_tokens=True) for line in lines)


@pytest.mark.some(3)
@pytest.mark.parametrize("attack", ["span", "embedding_rows"])
@pytest.mark.parametrize("family", ["bert", "electra", "distilbert"])
def test_a_pair_with_its_types(family: str, attack: str) -> None:
    line, types = pair(PAIRS[0])
    guess = attacked(family, [line], [types], attack)
    assert list(guess.texts) == read([line])
    assert (guess.confidence, guess.labels) == (("certified",), (1,))


@pytest.mark.some(2)
@pytest.mark.parametrize("family", ["albert", "mpnet"])
def test_a_pair_where_tables_tell_less(family: str) -> None:
    """Shared layers, and relative positions."""
    line, types = pair(PAIRS[0])
    guess = attacked(family, [line], [types], "span")
    assert list(guess.texts) == read([line])
    assert guess.confidence == ("certified",)


def test_pairs_of_a_batch_are_parted_at_their_end_tokens() -> None:
    lines, types = map(list, zip(*map(pair, PAIRS), strict=True))
    guess = attacked("bert", lines, types, "span")
    assert sorted(guess.texts) == read(lines)
    assert guess.confidence == ("certified", "certified")


@pytest.mark.parametrize("attack", ["span", "embedding_rows"])
def test_types_that_change_elsewhere(attack: str) -> None:
    """Two ends between the sentences, as RoBERTa's tokenizer has it, and one type throughout."""
    line, types = pair(PAIRS[0], between=2)
    for kinds in (types, [1] * len(line)):
        guess = attacked("bert", [line], [kinds], attack)
        assert list(guess.texts) == read([line])
        assert guess.confidence == ("certified",)


def test_types_of_tokens() -> None:
    ids = torch.tensor([[2, 9, 3, 8, 3, 0], [2, 7, 7, 7, 3, 6]])
    behind = Segments((0, 1), 3).of(ids).tolist()
    assert behind == [[0, 0, 0, 1, 1, 1], [0, 0, 0, 0, 0, 1]]
    assert Segments((0, 1, 0)).of(ids).tolist() == [[0, 1, 0, 0, 0, 0]] * 2
    rng = torch.Generator().manual_seed(0)
    places = torch.randn(5, 16, generator=rng, dtype=torch.float64)
    rows = torch.stack([places[:2].sum(0), places[2:].sum(0)])
    assert types_by_place(rows, places) == Segments((0, 0, 1, 1, 1))
    assert types_by_place(torch.stack([places.sum(0), 0 * places[0]]), places) is None


def test_a_batch_keeps_its_types() -> None:
    rows = torch.tensor([[2, 9, 3], [2, 7, 3]])
    plain = Batch(rows[:, :2], torch.tensor([0, 1]), torch.ones(2, 2, dtype=torch.int64))
    typed = Batch(rows, torch.tensor([0, 1]), torch.ones_like(rows), Segments((0, 1)).of(rows))
    assert typed.types is not None
    both = joined([plain, typed.to("cpu")])
    assert both.types is not None
    assert both.types.tolist() == [[0, 0, 0], [0, 0, 0], [0, 1, 1], [0, 1, 1]]
    assert joined([plain, plain]).types is None
    for batch in (plain, both[1:]):
        again = batch_from(batch_tensors(batch))
        assert (again.types is None) == (batch.types is None)
        assert again.types is None or torch.equal(again.types, both.types[1:])
