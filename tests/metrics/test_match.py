from itertools import permutations

import pytest
import torch

from fedsim.metrics import METRICS
from fedsim.metrics.base import Examples
from fedsim.metrics.match import align, match, nothing, text_distance
from fedsim.types import Batch


def images(count: int, seed: int = 0) -> Examples:
    inputs = torch.rand(count, 3, 8, 8, generator=torch.Generator().manual_seed(seed))
    return Examples(Batch(inputs, torch.arange(count)))


def texts(*tokens: tuple[int, ...], length: int = 6) -> Examples:
    inputs = torch.zeros(len(tokens), length, dtype=torch.int64)
    mask = torch.zeros_like(inputs)
    for row, ids in enumerate(tokens):
        inputs[row, : len(ids)] = torch.tensor(ids)
        mask[row, : len(ids)] = 1
    words = tuple(" ".join(f"w{i}" for i in ids) for ids in tokens)
    special = tuple(f"[CLS] {text} [SEP]" for text in words)
    batch = Batch(inputs, torch.arange(len(tokens)), mask)
    return Examples(batch, words, special, tokens, places=length)


def test_a_permutation_of_images_is_undone() -> None:
    truth, order = images(5), [3, 0, 4, 2, 1]
    guess = Examples(truth.batch[order])
    assert match(guess, truth, "image") == (1, 4, 3, 0, 2)
    aligned = align(guess, match(guess, truth, "image"), "image")
    assert torch.equal(aligned.batch.inputs, truth.batch.inputs)
    assert torch.equal(aligned.batch.labels, truth.batch.labels)


def test_the_assignment_is_the_best_of_all() -> None:
    truth, guess = images(5, 0), images(5, 1)
    difference = truth.batch.inputs[:, None].double() - guess.batch.inputs[None].double()
    cost = difference.square().flatten(2).mean(2)
    best = min(
        permutations(range(5)), key=lambda p: sum(cost[i, j].item() for i, j in enumerate(p))
    )
    assert match(guess, truth, "image") == best


def test_an_image_out_of_range_is_matched_as_it_is_scored() -> None:
    truth = Examples(Batch(torch.tensor([0.0, 1.0]).reshape(2, 1, 1, 1), torch.zeros(2)))
    guess = Examples(Batch(torch.tensor([50.0, torch.nan]).reshape(2, 1, 1, 1), torch.zeros(2)))
    assert match(guess, truth, "image") == (1, 0)


def test_a_permutation_of_texts_is_undone() -> None:
    truth = texts((1, 2, 3), (3, 2, 1), (4, 5), ())
    order = [2, 3, 1, 0]
    guess = texts(*(truth.tokens[i] for i in order), length=9)
    assert match(guess, truth, "text") == (3, 2, 0, 1)
    aligned = align(guess, match(guess, truth, "text"), "text")
    assert (aligned.words, aligned.words_special, aligned.tokens) == (
        truth.words, truth.words_special, truth.tokens,
    )  # fmt: skip
    assert aligned.batch.labels.tolist() == [3, 2, 0, 1]
    assert aligned.batch.mask is not None
    assert aligned.batch.mask.sum(1).tolist() == [3, 3, 2, 0]
    assert METRICS["exact_match"]().score(aligned, truth).tolist() == [1.0] * 4


@pytest.mark.parametrize(
    ("first", "second", "distance"),
    [
        ((1, 2, 3), (1, 2, 3), 0.0),
        ((1, 2), (3, 4), 1.0),
        ((), (), 0.0),
        ((), (1,), 1.0),
        ((1, 2), (2, 1), 0.5),  # all tokens, none in place
        ((1, 1, 2), (1, 3, 2, 4), 1 - (2 * 2 / 7 + 2 / 4) / 2),
    ],
)
def test_text_distance_is_symmetric_and_known(
    first: tuple[int, ...], second: tuple[int, ...], distance: float
) -> None:
    assert text_distance(first, second) == pytest.approx(distance)
    assert text_distance(second, first) == text_distance(first, second)


def test_too_few_guesses_leave_blank_images() -> None:
    truth = images(3)
    guess = Examples(truth.batch[[2]])
    matched = match(guess, truth, "image")
    assert matched == (None, None, 0)
    aligned = align(guess, matched, "image")
    assert torch.equal(aligned.batch.inputs[2], truth.batch.inputs[2])
    assert (aligned.batch.inputs[:2] == 0.5).all()
    assert aligned.batch.labels.tolist() == [-1, -1, 2]
    assert METRICS["label_accuracy"]().score(aligned, truth).tolist() == [0.0, 0.0, 1.0]


def test_too_few_guesses_leave_blank_texts() -> None:
    truth, guess = texts((1, 2), (3, 4)), texts((3, 4))
    aligned = align(guess, match(guess, truth, "text"), "text")
    assert (aligned.words, aligned.words_special, aligned.tokens) == (
        ("", "w3 w4"), ("", "[CLS] w3 w4 [SEP]"), ((), (3, 4)),
    )  # fmt: skip
    assert METRICS["rouge1_special"]().score(aligned, truth).tolist() == [0.0, 1.0]


def test_spare_guesses_are_left_out() -> None:
    truth, guess = images(2), images(4)
    assert match(guess, truth, "image") == (0, 1)
    assert len(align(guess, (0, 1), "image").batch) == 2


def test_soft_labels_become_classes_and_a_blank_one_stays_none() -> None:
    soft = Examples(Batch(torch.zeros(1, 1, 8, 8), torch.tensor([[0.1, 0.7, 0.2]])))
    assert align(soft, (0, None), "image").batch.labels.tolist() == [1, -1]


def test_no_guess_at_all_is_blank_for_every_example() -> None:
    pictures = nothing(images(3), "image")
    assert (pictures.batch.inputs == 0.5).all()
    assert pictures.batch.inputs.shape == (3, 3, 8, 8)
    assert pictures.batch.labels.tolist() == [-1, -1, -1]
    blank, truth = nothing(texts((1, 2), (3, 4)), "text"), texts((1, 2), (3, 4))
    for name, metric in METRICS.items():
        if metric.modality == "text" and not metric().available():
            assert metric().score(blank, truth).tolist() == [0.0, 0.0], name
    assert match(blank, truth, "text") == (0, 1)


def test_an_empty_batch_of_guesses_matches_nothing() -> None:
    truth = images(2)
    assert match(Examples(truth.batch[:0]), truth, "image") == (None, None)
    assert match(texts(), texts((1,)), "text") == (None,)
