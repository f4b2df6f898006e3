"""What is said of captures: rows of both tables; another cause, and words of no text, are seen."""

from dataclasses import replace
from itertools import product

import pytest

from benchmarks.bench_captures import cause_rows, word_rows
from benchmarks.cause_draws import CAUSES, NETWORKS, DrawnCause, drawn_cause, right
from benchmarks.word_draws import RATIOS, WAYS, DrawnWords

NAMED = [
    DrawnCause(cause, name, (told,) if told else (), told, False, 0.0)
    for cause, name in product(CAUSES, NETWORKS)
    for told in (right(cause, name),)
]


def last(drawn: list[DrawnCause]) -> float:
    share: float = cause_rows(drawn)[-1]["mean"]
    return share


def test_a_wrong_cause_is_counted_and_none_is_not() -> None:
    assert last(NAMED) == 0
    assert all(row["mean"] == 1 for row in cause_rows(NAMED)[: len(NAMED)])
    assert last([replace(NAMED[0], said=("is orthogonalised",)), *NAMED[1:]]) > 0
    silent = [replace(each, said=()) for each in NAMED]
    assert last(silent) == 0
    assert cause_rows(silent)[len(NETWORKS)]["mean"] == 0


@pytest.mark.parametrize("cause", ["rates by layer", "penalty of logits"])
def test_a_draw_is_the_same_again(cause: str) -> None:
    assert drawn_cause(cause, "narrow", 7) == drawn_cause(cause, "narrow", 7)


def test_words_of_no_text_lower_the_share() -> None:
    drawn = [DrawnWords(way, ratio, 10, 9) for way, ratio in product(WAYS, RATIOS)]
    rows = word_rows(drawn)
    assert rows[-1]["mean"] == 0.9
    assert rows[-1]["low"] < 0.9 < rows[-1]["high"]
    none = word_rows([DrawnWords(way, ratio, 0, 0) for way, ratio in product(WAYS, RATIOS)])
    assert {row.get("outcome") for row in none} == {"none called"}
