"""Texts cut into sentences, and rows that are kept under their own numbers."""

import re

import pytest
import torch

from fedsim.data.holdings import NO_FILTER, Criterion, Filter, split_sentences
from fedsim.errors import ConfigError
from fedsim.types import Rows

# Text -> its sentences, joined by a bar.
SENTENCES = {
    "One. Two! Is it three?": "One.|Two!|Is it three?",
    "In 1900 it rained . 5 men left .": "In 1900 it rained .|5 men left .",
    "No end": "",
    "= Early life =": "",
    "An end. No end": "An end.",
    "It cost 3.5 dollars, e.g. here. Fine.": "It cost 3.5 dollars, e.g. here.|Fine.",
    "Mr. Lee met J . K . Ray. No. 5 left. Plan B.": "Mr. Lee met J . K . Ray.|No. 5 left.|Plan B.",
    "Am I? I. You.": "Am I?|I.|You.",
    'He said "Go." Then he went.': 'He said "Go."|Then he went.',
    'She wrote " I am ill . " It was so . " Is it ? " No .': (
        'She wrote " I am ill . "|It was so .|" Is it ? "|No .'
    ),
    "Wait ... What ? !": "Wait ...|What ?",
    "lit . Valkyria 3 ) , is a role @-@ playing game . Next .": (
        "lit . Valkyria 3 ) , is a role @-@ playing game .|Next ."
    ),
    "": "",
}


@pytest.mark.parametrize("text", SENTENCES)
def test_sentences(text: str) -> None:
    assert "|".join(split_sentences(text)) == SENTENCES[text]


def rows(*texts: str) -> Rows:
    labels = torch.arange(len(texts))
    return Rows(texts, labels, tuple(range(10, 10 + len(texts))), ("a", "b", "c"))


SHORT = Criterion("tokens_below", "fewer than 3 tokens", lambda t: [len(s.split()) < 3 for s in t])
LATE = Criterion("entities", "a name", lambda texts: [text.startswith("B") for text in texts])


def test_nothing_is_filtered_by_default() -> None:
    one = rows("A text", "B")
    assert NO_FILTER.apply(one, "x") is one


def test_sentences_keep_the_number_and_the_label_of_their_row() -> None:
    filtered = Filter(sentences=True).apply(rows("A b. Be c.", "none", "Be. A."), "x")
    assert filtered.inputs == ("A b.", "Be c.", "Be.", "A.")
    assert filtered.numbers == (10, 10, 12, 12)
    assert filtered.labels.tolist() == [0, 0, 2, 2]
    assert filtered.class_names == ("a", "b", "c")


def test_criteria_apply_one_after_another() -> None:
    seen: list[tuple[str, ...]] = []

    def note(texts: tuple[str, ...]) -> list[bool]:
        seen.append(texts)
        return [True] * len(texts)

    sieve = Filter(True, (SHORT, LATE, Criterion("perplexity_below", "", note)))
    filtered = sieve.apply(rows("A b. Be c. Be c d.", "Be. A."), "x")
    assert (filtered.inputs, filtered.numbers) == (("Be c.", "Be."), (10, 11))
    assert seen == [("Be c.", "Be.")]


def test_what_leaves_nothing_is_named_with_its_counts() -> None:
    with pytest.raises(ConfigError) as error:
        Filter(True, (SHORT, LATE)).apply(rows("A b. A c. A b c.", "A."), "d 'train'")
    assert str(error.value) == (
        "task.filter.entities: none of the 3 texts of d 'train' that are left of 2 rows has a "
        "name. Relax the condition, or choose a longer split."
    )
    message = "task.filter.sentences: none of the 2 texts of d 'train' holds a sentence that ends"
    with pytest.raises(ConfigError, match=re.escape(message)):
        Filter(True).apply(rows("A", "B"), "d 'train'")
