"""Training of the built-in tokenizers: ``python -m fedsim.models.vocabulary SENTENCES_JSON``."""

from __future__ import annotations

import json
import re
import string
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tokenizers import (
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from fedsim.models import TEXT_MODELS

BERT_SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
ALPHABET = sorted(set(string.printable.lower()) - set(string.whitespace))


def word_pieces(texts: Sequence[str], size: int) -> Tokenizer:
    """An uncased WordPiece tokenizer with BERT's special tokens and template ``[CLS] text [SEP]``.

    The library's WordPiece trainer gives a different vocabulary each time; its BPE trainer does
    not. The texts are therefore split by a BPE model, and its most frequent pieces are the
    vocabulary.
    """
    normalizer = normalizers.BertNormalizer(lowercase=True)
    pairs = Tokenizer(models.BPE())
    pairs.normalizer = normalizer
    pairs.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.BpeTrainer(vocab_size=size, initial_alphabet=ALPHABET, show_progress=False)
    pairs.train_from_iterator(texts, trainer)
    counts: Counter[str] = Counter()
    for encoding in pairs.encode_batch(texts):
        words = zip([None, *encoding.word_ids], encoding.word_ids, encoding.tokens, strict=False)
        counts.update(piece if word != last else f"##{piece}" for last, word, piece in words)
    # With every printable character, at the start of a word and inside it, no English is unknown.
    always = [*BERT_SPECIAL, *ALPHABET, *(f"##{letter}" for letter in ALPHABET)]
    ranked = sorted(counts.keys() - set(always), key=lambda piece: (-counts[piece], piece))
    pieces = [*always, *ranked][:size]
    tokenizer = Tokenizer(
        models.WordPiece({piece: i for i, piece in enumerate(pieces)}, unk_token="[UNK]")
    )
    tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.add_special_tokens(BERT_SPECIAL)
    ends = [(token, pieces.index(token)) for token in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=ends
    )
    return tokenizer


def byte_pairs(texts: Sequence[str], size: int) -> Tokenizer:
    """GPT-2's byte-level BPE tokenizer, which keeps case and knows every text."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


TRAINERS = {"tiny-bert": word_pieces, "tiny-gpt2": byte_pairs}
_SECRET = re.compile(r"(?<!^)(?<!\. )\b[A-Z]\w*|\w*\d\w*")
_SLOT = re.compile(r"\{\w+\}")


def corpus(path: Path) -> list[str]:
    """The built-in sentences without names and numbers, which then have no token of their own.

    A capital inside a sentence marks a name; the words of the public templates are all kept.
    """
    data = json.loads(path.read_text())
    sentences = [_SECRET.sub("", text) for split in ("train", "test") for text, _ in data[split]]
    templates = [_SLOT.sub("", text) for text, _ in data["templates"]]
    return [*sentences, *templates, *(word for words in data["words"].values() for word in words)]


def main(path: Path) -> None:
    """Write ``tokenizer.json`` of each built-in, of the size that its ``config.json`` states."""
    texts = corpus(path)
    for name, train in TRAINERS.items():
        folder = TEXT_MODELS[name]
        size: int = json.loads((folder / "config.json").read_text())["vocab_size"]
        train(texts, size).save(str(folder / "tokenizer.json"))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
