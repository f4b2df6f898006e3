import base64
import io
import math

import numpy as np
import numpy.typing as npt
import pytest
import torch
from PIL import Image

from experiments.report.gallery import data_uri, mark, words
from experiments.stages.png import png


def decode(image: torch.Tensor) -> npt.NDArray[np.uint8]:
    head, _, body = data_uri(png(image)).partition(",")
    assert head == "data:image/png;base64"
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(body))))


def test_pixels_survive() -> None:
    image = torch.arange(3 * 4 * 5, dtype=torch.uint8).reshape(3, 4, 5)
    np.testing.assert_array_equal(decode(image), image.permute(1, 2, 0).numpy())


def test_floats_are_scaled_clamped_and_grey_images_have_one_channel() -> None:
    image = torch.tensor([[[0.0, 0.5], [1.0, 7.0], [-3.0, math.nan]]])
    np.testing.assert_array_equal(decode(image), [[0, 128], [255, 255], [0, 0]])


def test_words_of_a_text() -> None:
    assert words("größer  \N{EM DASH}".encode()) == ["größer", "", "\N{EM DASH}"]
    assert words(b"") == []


@pytest.mark.parametrize(
    ("original", "guess", "marks"),
    [
        ("a b c", "a b c", [("run", "a b c")]),
        ("a b c", "x y", [("missed", "a b c")]),
        ("a b c", "", [("missed", "a b c")]),
        ("A b c", "c a", [("word", "A"), ("missed", "b"), ("word", "c")]),
        # Runs are in the order of both, and words beside them are single ones.
        ("a b c d", "c d a b", [("run", "a b"), ("word", "c"), ("word", "d")]),
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
