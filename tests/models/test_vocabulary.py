from __future__ import annotations

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from fedsim.models import TEXT_MODELS, TOKENIZERS, vocabulary

SENTENCES = Path(vocabulary.__file__).parents[1] / "data" / "sentences.json"
TEXTS = ["The boat left the harbour at dawn.", "A boatman leaves the harbour wall."] * 3


@pytest.mark.parametrize("name", sorted(TEXT_MODELS))
def test_committed_tokenizer_fills_the_embedding(name: str) -> None:
    folder = TEXT_MODELS[name]
    size = json.loads((folder / "config.json").read_text())["vocab_size"]
    folder = TEXT_MODELS[TOKENIZERS.get(name, name)]
    assert Tokenizer.from_file(str(folder / "tokenizer.json")).get_vocab_size() == size


@pytest.mark.parametrize("name", sorted(vocabulary.TRAINERS))
def test_training_twice_gives_the_same_tokenizer(name: str) -> None:
    first, second = (vocabulary.TRAINERS[name](TEXTS, 400) for _ in range(2))
    assert first.get_vocab() == second.get_vocab()
    assert first.encode(TEXTS[1]).ids == second.encode(TEXTS[1]).ids


def test_word_pieces_keep_the_most_frequent() -> None:
    small, large = (vocabulary.word_pieces(TEXTS, size) for size in (145, 10_000))
    assert small.get_vocab_size() == 145
    # 5 special tokens and 68 characters, at the start of a word and inside it, leave room for 4.
    assert small.encode("the harbour").tokens == ["[CLS]", "the", "harbour", "[SEP]"]
    assert small.token_to_id("boatman") is None
    assert large.token_to_id("boatman") is not None


def test_word_pieces_know_all_printable_text() -> None:
    tokenizer = Tokenizer.from_file(str(TEXT_MODELS["tiny-bert"] / "tokenizer.json"))
    encoding = tokenizer.encode("Zyx~Q9 {@} Ångström #7/8?!")
    assert "[UNK]" not in encoding.tokens
    assert (encoding.tokens[0], encoding.tokens[-1]) == ("[CLS]", "[SEP]")
    assert tokenizer.encode("漢").tokens == ["[CLS]", "[UNK]", "[SEP]"]


def test_byte_pairs_give_every_text_back() -> None:
    tokenizer = Tokenizer.from_file(str(TEXT_MODELS["tiny-gpt2"] / "tokenizer.json"))
    text = "Zyx  Ångström 漢字, #7/8?!"
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_corpus_leaves_out_names_and_numbers(tmp_path: Path) -> None:
    data = {
        "train": [["My friend Timo owes 30 crowns. Ask him in room 3c.", 1]],
        "test": [["Rain fell on Carrowby.", 0]],
        "templates": [["{name} sees the {thing}.", 0]],
        "words": {"thing": ["lamp"]},
    }
    (tmp_path / "sentences.json").write_text(json.dumps(data))
    assert vocabulary.corpus(tmp_path / "sentences.json") == [
        "My friend  owes  crowns. Ask him in room .",
        "Rain fell on .",
        " sees the .",
        "lamp",
    ]


def test_private_names_stay_in_pieces() -> None:
    tokenizer = Tokenizer.from_file(str(TEXT_MODELS["tiny-bert"] / "tokenizer.json"))
    private = json.loads(SENTENCES.read_text())["train"]
    assert any("Dunmarrow" in text for text, _ in private)
    assert tokenizer.token_to_id("dunmarrow") is None
