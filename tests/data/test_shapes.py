"""The drawn pictures: fixed by split and number, smooth, and as many kinds as promised."""

import torch
from torch import Tensor

from fedsim.data.rows import load_rows
from fedsim.data.shapes import SHAPES, Shapes


def _pictures(split: str) -> Tensor:
    inputs = load_rows("shapes", split, modality="image").inputs
    assert isinstance(inputs, Tensor)
    return inputs


def test_a_row_depends_on_its_split_and_number_only() -> None:
    alone, label = Shapes().read("train", range(7, 8))
    some, labels = Shapes().read("train", range(5, 10))
    torch.testing.assert_close(alone[0], some[2], rtol=0, atol=0)
    assert label[0] == labels[2]
    assert not torch.equal(alone, Shapes().read("test", range(7, 8))[0])


def test_no_picture_occurs_twice_over_all_splits() -> None:
    pictures = torch.cat([_pictures(f"{split}[:400]") for split in Shapes.sizes])
    assert pictures.shape == (1200, 3, 32, 32)
    assert pictures.dtype == torch.uint8
    assert len({picture.numpy().tobytes() for picture in pictures}) == 1200


def test_every_class_occurs_about_equally_often() -> None:
    rows = load_rows("shapes", "test", modality="image")
    counts = torch.bincount(rows.labels, minlength=len(SHAPES))
    assert len(rows) == 500
    assert rows.class_names == tuple(SHAPES)
    assert counts.min() >= 30
    assert counts.max() <= 75


def test_pictures_are_no_noise() -> None:
    pictures = _pictures("test[:200]").double() / 255
    steps = (pictures[..., 1:] - pictures[..., :-1]).pow(2).mean()
    # Independent pixels would give 2: twice the variance.
    assert steps / pictures.flatten(2).var(dim=2).mean() < 0.25
    assert pictures.flatten(1).std(dim=1).min() > 0.04
