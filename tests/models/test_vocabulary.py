import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from fedsim.data import builtin
from fedsim.models import TEXT_MODELS, TOKENIZERS

SENTENCES = Path(builtin.__file__).with_name("sentences.json")


@pytest.mark.parametrize("name", sorted(TEXT_MODELS))
def test_committed_tokenizer_fills_the_embedding(name: str) -> None:
    folder = TEXT_MODELS[name]
    size = json.loads((folder / "config.json").read_text())["vocab_size"]
    folder = TEXT_MODELS[TOKENIZERS.get(name, name)]
    assert Tokenizer.from_file(str(folder / "tokenizer.json")).get_vocab_size() == size


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


def test_private_names_stay_in_pieces() -> None:
    tokenizer = Tokenizer.from_file(str(TEXT_MODELS["tiny-bert"] / "tokenizer.json"))
    private = json.loads(SENTENCES.read_text())["train"]
    assert any("Dunmarrow" in text for text, _ in private)
    assert tokenizer.token_to_id("dunmarrow") is None
