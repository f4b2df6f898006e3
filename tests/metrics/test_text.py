import math
from dataclasses import replace

import pytest
import torch

from fedsim.errors import ConfigError
from fedsim.metrics import METRICS
from fedsim.metrics.base import Examples
from fedsim.types import Batch

TEXT = [name for name, metric in METRICS.items() if metric.modality == "text"]
VOCABULARY = ["the", "cat", "sat", "on", "mat", "dog", "and", "it"]


def texts(*words: str, labels: list[int] | None = None) -> Examples:
    """Tokens are positions in ``VOCABULARY``; the special text has [CLS] before and [SEP] after."""
    tokens = tuple(tuple(VOCABULARY.index(word) for word in text.split()) for text in words)
    inputs = torch.tensor([[*ids, *[0] * (8 - len(ids))] for ids in tokens])
    mask = torch.tensor([[1] * len(ids) + [0] * (8 - len(ids)) for ids in tokens])
    batch = Batch(inputs, torch.tensor(labels or [0] * len(words)), mask)
    special = tuple(f"[CLS] {text} [SEP]" for text in words)
    return Examples(batch, words, special, tokens, places=8)


def score(name: str, guess: str, truth: str) -> float:
    values = METRICS[name]().score(texts(guess), texts(truth))
    assert values.shape == (1,)
    assert values.dtype == torch.float64
    return values.item()


@pytest.mark.parametrize("name", TEXT)
def test_equal_texts_score_one_and_unrelated_ones_zero(name: str) -> None:
    special = {"rouge1_special": 2 / 5, "rouge2_special": 0.0, "rougeL_special": 2 / 5}
    special["padded_token_accuracy"] = 5 / 8  # of eight places the five behind both texts
    assert score(name, "the cat sat on the mat", "the cat sat on the mat") == 1.0
    assert score(name, "dog and it", "the cat sat") == pytest.approx(special.get(name, 0.0))


@pytest.mark.parametrize("name", [name for name in TEXT if not name.endswith("special")])
def test_both_empty_is_one_and_one_empty_is_zero(name: str) -> None:
    assert score(name, "", "") == 1.0
    assert score(name, "", "the cat") == 0.0
    assert score(name, "the cat", "") == 0.0


# Guess: the cat the dog sat. Truth: the cat sat on the mat.
KNOWN = {
    "rouge1": 2 * 4 / (5 + 6),  # the the cat sat
    "rouge2": 2 * 1 / (4 + 5),  # the-cat
    "rougeL": 2 * 3 / (5 + 6),  # the cat sat, or the cat the
    "rouge1_special": 2 * 6 / (7 + 8),
    "rouge2_special": 2 * 2 / (6 + 7),  # cls-the, the-cat
    "rougeL_special": 2 * 5 / (7 + 8),
    "token_accuracy": 2 / 6,  # the cat, at their places
    "padded_token_accuracy": 4 / 8,  # these two, and two places behind both texts
    "token_precision": 3 / 4,  # of the cat dog sat
    "token_recall": 3 / 5,  # of the cat sat on mat
    "batch_token_precision": 3 / 4,
    "batch_token_recall": 3 / 5,
    "exact_match": 0.0,
    "rouge1_best": 2 * 4 / (5 + 6),
    "rouge2_best": 2 * 1 / (4 + 5),
    "rougeL_best": 2 * 3 / (5 + 6),
    "sentence_precision": 1.0,  # 6/11 is above 0.25
    "sentence_recall": 1.0,
    # Precisions 4/5, 1/4, then smoothed 1/(2*3) and 1/(4*2); brevity exp(1 - 6/5).
    "bleu": math.exp(-1 / 5) * (4 / 5 * 1 / 4 * 1 / 6 * 1 / 8) ** (1 / 4),
}


@pytest.mark.parametrize("name", TEXT)
def test_known_answers(name: str) -> None:
    value = score(name, "the cat the dog sat", "the cat sat on the mat")
    assert value == pytest.approx(KNOWN[name])


def test_bleu_of_a_guess_one_word_short_is_the_brevity_penalty() -> None:
    scores = score("bleu", "the cat sat on the", "the cat sat on the mat")
    assert scores == pytest.approx(math.exp(1 - 6 / 5))
    assert score("bleu", "cat", "cat") == pytest.approx(1.0)


def test_batch_tokens_leave_out_which_text_they_are_in() -> None:
    guess, truth = ["the mat", "cat sat dog", ""], ["the cat", "sat on", "mat"]
    for name, expected in (("batch_token_precision", 4 / 5), ("batch_token_recall", 4 / 5)):
        metric = METRICS[name]()
        scores = metric.score(texts(*guess), texts(*truth))
        assert scores.tolist() == [expected] * 3


def test_token_accuracy_is_over_the_length_of_the_truth() -> None:
    assert score("token_accuracy", "the cat sat on the mat", "the cat") == 1.0
    assert score("token_accuracy", "the", "the cat") == 0.5
    assert score("exact_match", "the cat sat", "the cat") == 0.0


def test_padding_counts_to_the_length_of_the_task() -> None:
    one, two = texts("the cat"), texts("the dog")
    metric = METRICS["padded_token_accuracy"]()
    for places, expected in ((8, 7 / 8), (16, 15 / 16), (2, 1 / 2)):
        short, truth = (replace(side, places=places) for side in (one, two))
        assert metric.score(short, truth).tolist() == [expected]


def test_rouge_does_not_stem_and_ignores_case() -> None:
    def rouge(guess: str, truth: str) -> float:
        blank = Batch(torch.zeros(1, 1), torch.zeros(1))
        return (
            METRICS["rouge1"]().score(Examples(blank, (guess,)), Examples(blank, (truth,))).item()
        )

    assert rouge("It rains.", "it rains") == 1.0
    assert rouge("raining", "rained") == 0.0
    assert rouge("", "...") == 0.0


def test_rows_are_compared_one_by_one() -> None:
    guess, truth = texts("the cat", "dog", ""), texts("the cat", "cat", "it")
    assert METRICS["rouge1"]().score(guess, truth).tolist() == [1.0, 0.0, 0.0]
    with pytest.raises(ValueError, match="zip"):
        METRICS["rouge1"]().score(guess, texts("the cat"))


def test_label_accuracy_counts_no_guess_as_wrong() -> None:
    guess = texts("", "", "", labels=[1, 2, -1])
    truth = texts("", "", "", labels=[1, 0, -1])
    assert METRICS["label_accuracy"]().score(guess, truth).tolist() == [1.0, 0.0, 0.0]


def test_label_accuracy_refuses_next_token_targets() -> None:
    inputs = torch.zeros(2, 5, dtype=torch.int64)
    model = Examples(Batch(inputs, inputs, inputs))
    with pytest.raises(ConfigError) as caught:
        METRICS["label_accuracy"]().score(texts("", ""), model)
    assert str(caught.value) == (
        "label_accuracy: the truth has labels of shape (2, 5), not one class per example. Leave "
        "this metric out for a language model."
    )
