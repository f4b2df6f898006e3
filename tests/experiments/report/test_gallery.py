from __future__ import annotations

import base64
import io
import math

import numpy as np
import numpy.typing as npt
import pytest
import torch
from PIL import Image

from experiments.report.gallery import Example, choose, data_uri, mark
from fedsim.capture import CaptureKey


def example(index: int, psnr: float | None) -> Example:
    key = CaptureKey(round=1, client=0)
    return Example("cell", "dlg", key, index, "image", torch.zeros(1, 2, 2), None, {"psnr": psnr})


def decode(uri: str) -> npt.NDArray[np.uint8]:
    head, _, body = uri.partition(",")
    assert head == "data:image/png;base64"
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(body))))


def test_the_choice_is_the_best_the_quartiles_and_the_worst() -> None:
    values = [7.0, 1.0, 9.0, 3.0, 5.0, 2.0, 8.0, 4.0, 6.0]
    chosen = choose([example(i, value) for i, value in enumerate(values)], "psnr", 5)
    assert [rank for rank, _ in chosen] == [1, 3, 5, 7, 9]
    assert [shown.metrics["psnr"] for _, shown in chosen] == [9.0, 7.0, 5.0, 3.0, 1.0]


def test_few_examples_are_all_shown_and_the_unscored_come_last() -> None:
    chosen = choose([example(0, None), example(1, math.nan), example(2, -5.0)], "psnr", 5)
    assert [(rank, shown.index) for rank, shown in chosen] == [(1, 2), (2, 0), (3, 1)]


def test_pixels_survive() -> None:
    image = torch.arange(3 * 4 * 5, dtype=torch.uint8).reshape(3, 4, 5)
    np.testing.assert_array_equal(decode(data_uri(image)), image.permute(1, 2, 0).numpy())


def test_floats_are_scaled_clamped_and_grey_images_have_one_channel() -> None:
    image = torch.tensor([[[0.0, 0.5], [1.0, 7.0], [-3.0, math.nan]]])
    np.testing.assert_array_equal(decode(data_uri(image)), [[0, 128], [255, 255], [0, 0]])


@pytest.mark.parametrize(
    ("original", "guess", "marks"),
    [
        ("a b c", "a b c", [("run", "a b c")]),
        ("a b c", "x y", [("missed", "a b c")]),
        ("a b c", "", [("missed", "a b c")]),
        ("A b c", "c a", [("word", "A"), ("missed", "b"), ("word", "c")]),
        # Order inside a run matters, the place of the run does not.
        ("a b c d", "c d a b", [("run", "a b"), ("run", "c d")]),
        ("a b c d", "d c b a", [("word", "a"), ("word", "b"), ("word", "c"), ("word", "d")]),
        # A word of the guess accounts for one word of the original.
        ("the cat the dog", "the", [("word", "the"), ("missed", "cat the dog")]),
        # The longest run is taken first, so that no part of it is spent on a shorter one.
        ("a b x a b c", "a b c", [("missed", "a b x"), ("run", "a b c")]),
    ],
)
def test_marks(original: str, guess: str, marks: list[tuple[str, str]]) -> None:
    assert mark(original.split(), guess.split()) == marks


def test_marks_keep_every_word_in_its_place() -> None:
    rng = torch.Generator().manual_seed(0)
    for _ in range(50):
        words = [str(n) for n in torch.randint(0, 6, (12,), generator=rng).tolist()]
        guess = [str(n) for n in torch.randint(0, 6, (12,), generator=rng).tolist()]
        pieces = mark(words, guess)
        assert " ".join(text for _, text in pieces).split() == words
        recovered = [w for kind, text in pieces if kind != "missed" for w in text.split()]
        assert sorted(recovered) == sorted(
            w for w in set(words) for _ in range(min(words.count(w), guess.count(w)))
        )
