"""Many guesses for a batch, and the first one alone, against all of its private sentences."""

import math
import random

import pytest
import torch

from fedsim.metrics import METRICS
from fedsim.metrics.base import Examples
from fedsim.metrics.match import align, match, nothing
from fedsim.metrics.rouge import RougeL
from fedsim.metrics.sentences import overlaps
from fedsim.types import Batch

TRUTH = ("the cat sat on the mat", "a dog ran home", "it rained in Rome today")
WORDS = sorted({word for text in TRUTH for word in text.split()} | {"no", "such", "word"})


def texts(*words: str) -> Examples:
    tokens = tuple(tuple(map(WORDS.index, text.split())) for text in words)
    inputs = torch.zeros(len(words), 9, dtype=torch.int64)
    return Examples(Batch(inputs, torch.full((len(words),), -1)), words, words, tokens)


def score(name: str, *guesses: str) -> list[float]:
    """As the score stage does: matched first, the spare guesses left out of ``words``."""
    guess, truth = texts(*guesses), texts(*TRUTH)
    aligned = align(guess, match(guess, truth, "text"), "text")
    values: list[float] = METRICS[name]().score(aligned, truth).tolist()
    return values


@pytest.mark.parametrize(
    ("guesses", "recall", "precision"),
    [
        (TRUTH, 1.0, 1.0),
        (TRUTH[:1], 1 / 3, 1.0),
        (("no such word", TRUTH[1]), 1 / 3, 1 / 2),
        # More guesses than sentences: the two that are left over count as well.
        ((*TRUTH[:2], "no", "such", "the cat sat"), 2 / 3, 3 / 5),
        # One sentence three times is found once.
        ((TRUTH[0],) * 3, 1 / 3, 1.0),
        # One word of four and of one is 0.4; one of six and of two is 0.25, which is not above.
        (("dog",), 1 / 3, 1.0),
        (("mat no",), 0.0, 0.0),
        (("no",), 0.0, 0.0),
        (("",), 0.0, 0.0),
    ],
)
def test_recall_and_precision_count_all_guesses(
    guesses: tuple[str, ...], recall: float, precision: float
) -> None:
    assert score("sentence_recall", *guesses) == pytest.approx([recall] * 3)
    assert score("sentence_precision", *guesses) == pytest.approx([precision] * 3)


def test_a_job_without_a_guess_finds_nothing() -> None:
    truth = texts(*TRUTH)
    blank = nothing(truth, "text")
    assert blank.all_words == ()
    for name in ("sentence_recall", "sentence_precision", "rougeL_best"):
        scores = METRICS[name]().score(blank, truth)
        assert all(value == 0.0 or math.isnan(value) for value in scores.tolist()), name


def test_the_first_guess_is_scored_against_the_sentence_that_it_matches_best() -> None:
    guesses = ("in Rome it rained", TRUTH[0], TRUTH[1])
    assert score("rouge1_best", *guesses) == pytest.approx([2 * 4 / (4 + 5)] * 3)
    assert score("rouge2_best", *guesses) == pytest.approx([2 * 2 / (3 + 4)] * 3)
    assert score("rougeL_best", *guesses) == pytest.approx([2 * 2 / (4 + 5)] * 3)


def test_the_fast_overlaps_are_those_of_the_library() -> None:
    rng = random.Random(0)
    letters = ["a", "b", "c", "Don't", "...", "e"]
    guesses, truths = (
        tuple(" ".join(rng.choices(letters, k=rng.randrange(30))) for _ in range(count))
        for count in (12, 9)
    )
    guesses, truths = (*guesses, "", "..."), (*truths, "")
    found = overlaps(guesses, truths)
    assert found.shape == (14, 10)
    for i, guess in enumerate(guesses):
        row = texts(*[""] * len(truths)).batch
        scores = RougeL().score(Examples(row, (guess,) * len(truths)), Examples(row, truths))
        assert torch.allclose(found[i], scores)
    assert overlaps((), truths).shape == (0, 10)


def test_what_has_one_value_for_a_batch_says_so() -> None:
    names = {name for name, metric in METRICS.items() if metric.of_batch}
    assert names == {
        *("sentence_recall", "sentence_precision", "batch_token_recall", "batch_token_precision"),
        *("rouge1_best", "rouge2_best", "rougeL_best"),
    }
    for name in names:
        assert len(set(score(name, "in Rome it rained", TRUTH[0], "a dog"))) == 1, name
    assert len(set(score("rougeL", "in Rome it rained", TRUTH[0], "a dog"))) == 3
