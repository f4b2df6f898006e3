"""The real data sets, where ``FEDSIM_HUB`` names a folder with them."""

import os

import pytest
import torch
from torch import Tensor

from fedsim.data.rows import load_rows

pytestmark = pytest.mark.skipif(
    "FEDSIM_HUB" not in os.environ, reason="FEDSIM_HUB names no folder with the real data sets"
)

IMAGES = [
    ("uoft-cs/cifar10", (3, 32, 32), 10, "airplane", [6, 9, 9, 4]),
    ("uoft-cs/cifar100", (3, 32, 32), 100, "apple", [11, 15, 4, 14]),
    ("ylecun/mnist", (1, 28, 28), 10, "0", [5, 0, 4, 1]),
]
COARSE = {"uoft-cs/cifar100": "coarse_label"}


@pytest.mark.parametrize(("dataset", "shape", "classes", "first", "labels"), IMAGES)
def test_images(
    dataset: str, shape: tuple[int, ...], classes: int, first: str, labels: list[int]
) -> None:
    rows = load_rows(dataset, "train[:50]", modality="image")
    assert isinstance(rows.inputs, Tensor)
    assert rows.inputs.shape == (50, *shape)
    assert rows.inputs.dtype == torch.uint8
    assert (len(rows.class_names), rows.class_names[0]) == (classes, first)
    column = COARSE.get(dataset, "")
    chosen = load_rows(dataset, "train[:4]", modality="image", label_column=column)
    assert chosen.labels.tolist() == labels


TEXTS: list[tuple[str, int, str]] = [
    ("nyu-mll/glue:cola", 8551, "acceptable"),
    ("nyu-mll/glue:sst2", 67349, "positive"),
    ("cornell-movie-review-data/rotten_tomatoes", 8530, "pos"),
    ("film/enron-sentences", 24582, ""),
]


@pytest.mark.parametrize(("dataset", "count", "name"), TEXTS)
def test_texts(dataset: str, count: int, name: str) -> None:
    rows = load_rows(dataset, "train", modality="text")
    assert rows.numbers == tuple(range(count))
    assert rows.class_names[1:] == ((name,) if name else ())
    assert set(rows.labels.tolist()) == ({0, 1} if name else {0})


def test_wikitext_has_no_blank_lines_and_headings() -> None:
    dataset = "Salesforce/wikitext:wikitext-2-raw-v1"
    rows = load_rows(dataset, "train[:40]", modality="text")
    assert rows.numbers[:4] == (3, 4, 5, 9)
    assert len(rows) == 18
    assert str(rows.inputs[0]).startswith("Senjō no Valkyria 3 : Unrecorded Chronicles")
