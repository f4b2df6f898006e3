"""A certified picture that is none of the noted ones is named by how it was altered."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import fedsim
from experiments.captures.alterations import altered
from experiments.captures.update import Update
from experiments.wording.catalogue import sentence
from tests.experiments.captures.conftest import SENTENCE, Held


def pictures(count: int, size: int = 16) -> Tensor:
    return torch.rand(count, 3, size, size, generator=torch.Generator().manual_seed(0))


def shifted(picture: Tensor) -> Tensor:
    """Padded by four and cropped again, as loaders of small pictures do."""
    return torch.nn.functional.pad(picture, (4, 4, 4, 4))[..., 1:17, 6:22]


@pytest.mark.parametrize(
    ("change", "way"),
    [
        (lambda x: x.flip(-1), "flipped left to right"),
        (lambda x: x.flip(-2), "flipped upside down"),
        (lambda x: x.rot90(1, (-2, -1)), "turned by"),
        (lambda x: x.transpose(-1, -2), "transposed"),
        (shifted, "shifted by"),
        (lambda x: shifted(x.flip(-1)), "and flipped"),
        (lambda x: (x - 0.4) / torch.tensor([0.2, 0.3, 0.4]).view(3, 1, 1), "(normalised)"),
        (lambda x: 2 * x.flip(-1), "left to right and normalised"),
    ],
)
def test_a_flip_or_a_crop_is_named(change: Callable[[Tensor], Tensor], way: str) -> None:
    private = pictures(5)
    said = altered(change(private[2:3]), private, (3, 16, 16))
    assert way in said


def test_what_is_not_named_is_said_all_the_same() -> None:
    private = pictures(5)
    mixed = 0.5 * private[:1] + 0.5 * private[1:2]
    assert altered(mixed, private, (3, 16, 16)) == sentence("truth.changed", count=1)
    assert altered(0.3 + 0 * mixed, private, (3, 16, 16)) == sentence("truth.changed", count=1)
    assert altered(mixed, 0 * private, (3, 16, 16)) == sentence("truth.changed", count=1)
    rows = torch.rand(4, 9, 1, 1)
    assert altered(rows[:1].flip(1), rows, (9,)) == sentence("truth.changed", count=1)


@pytest.mark.some(3)
@pytest.mark.parametrize(
    ("truth", "changed"), [(SENTENCE, 0), (SENTENCE[:-6], 1), (SENTENCE.replace("4", "5"), 1)]
)
def test_a_certified_text_that_is_none_of_the_noted_ones_is_said(
    held: Held, truth: str, changed: int
) -> None:
    victim = Update.of(held.model, gradients=held.gradients, tokenizer=held.tokenizer)
    guess = fedsim.attack(victim, "span", quiet=True)
    assert guess.certified == (True,)
    said = fedsim.score(guess, truth=[truth]).note
    assert said == (sentence("truth.changed", count=1) if changed else "")
