"""The written sentences: varied, of the promised length, and never in two splits."""

import re

import pytest

from fedsim import seeds
from fedsim.data.builtin import Sentences, _fill
from fedsim.data.rows import load_rows


def _texts(split: str) -> tuple[str, ...]:
    inputs = load_rows("sentences", split, modality="text").inputs
    assert isinstance(inputs, tuple)
    return inputs


def _words(text: str) -> str:
    return " ".join(re.findall(r"[a-z0-9]+", text.casefold()))


def test_no_sentence_occurs_twice_over_all_splits() -> None:
    texts = [_words(text) for split in Sentences.sizes for text in _texts(split)]
    assert len(texts) == 1512
    assert len(set(texts)) == len(texts)


@pytest.mark.parametrize("split", Sentences.sizes)
def test_sentences_have_6_to_22_words_and_no_open_slot(split: str) -> None:
    for text in _texts(split):
        assert 6 <= len(text.split()) <= 22, text
        assert text[0].isupper() or text[0].isdigit(), text
        assert text[-1] in ".?!", text
        assert not set("{}_") & set(text), text


@pytest.mark.parametrize("split", Sentences.sizes)
def test_the_classes_are_balanced(split: str) -> None:
    rows = load_rows("sentences", split, modality="text")
    assert len(rows) == Sentences.sizes[split]
    assert rows.class_names == ("everyday", "sensitive")
    assert abs(rows.labels.double().mean().item() - 0.5) < 0.03


def test_private_sentences_share_no_four_words_at_the_start() -> None:
    starts = [" ".join(_words(text).split()[:4]) for s in ("train", "test") for text in _texts(s)]
    assert len(set(starts)) == len(starts) == 312


def test_two_slots_of_a_kind_never_get_the_same_word() -> None:
    rng = seeds.numpy_generator(1)
    pairs = [_fill("{daytime} {daytime2}", rng).lower().split() for _ in range(50)]
    assert all(first != second for first, second in pairs)
    assert len({tuple(pair) for pair in pairs}) > 6
