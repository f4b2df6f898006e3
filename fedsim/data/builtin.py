"""Data sets that come with fedsim: their interface, invented messages and answers of voters."""

import json
import re
from abc import ABC, abstractmethod
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from fedsim import seeds
from fedsim.columns import SURVEY, Column, encoded


class Builtin(ABC):
    """A data set that needs no file and no network, and is the same on every machine.

    Attributes:
        modality: type of the inputs.
        class_names: names of the classes.
        columns: of a table, else empty.
        sizes: number of rows in each split; ``public`` is the one that an attacker may own.
        drawn: number of rows that ``draw`` gives for each key; 0 if it gives none. They are the
            split ``drawn@<key>``, the key in hexadecimal.
    """

    modality: ClassVar[Literal["image", "text"]]
    class_names: ClassVar[tuple[str, ...]]
    columns: ClassVar[tuple[Column, ...]] = ()
    sizes: ClassVar[dict[str, int]]
    drawn: ClassVar[int] = 0

    @abstractmethod
    def read(self, split: str, numbers: range) -> tuple[Tensor | tuple[str, ...], Tensor]:
        """Inputs as in ``Rows``, and labels int64 ``(row,)``, of these rows of the split."""

    def draw(self, key: int, numbers: range) -> tuple[Tensor | tuple[str, ...], Tensor]:
        """As ``read``, of rows that only who knows the key can draw again."""
        raise NotImplementedError(f"{type(self).__name__} draws no rows")


_SLOT = re.compile(r"\{(\w+?)\d?\}")


class Sentences(Builtin):
    """English messages of 6 to 22 words, everyday or sensitive; all names and places are invented.

    ``train`` and ``test`` are written by hand; ``public`` is composed from templates and words.
    """

    modality: ClassVar[Literal["image", "text"]] = "text"
    class_names: ClassVar[tuple[str, ...]] = ("everyday", "sensitive")
    sizes: ClassVar[dict[str, int]] = {"train": 240, "test": 72, "public": 1200}
    drawn: ClassVar[int] = 400

    def read(self, split: str, numbers: range) -> tuple[tuple[str, ...], Tensor]:
        """Texts and their classes."""
        public = split == "public"
        return _sentence_rows(
            _compose(self.sizes["public"]) if public else _sentences_file()[split], numbers
        )

    def draw(self, key: int, numbers: range) -> tuple[tuple[str, ...], Tensor]:
        """As ``read``, composed from the templates by the key."""
        return _sentence_rows(_compose(self.drawn, key), numbers)


def _sentence_rows(rows: list[tuple[str, int]], numbers: range) -> tuple[tuple[str, ...], Tensor]:
    texts = tuple(rows[number][0] for number in numbers)
    return texts, torch.tensor([rows[number][1] for number in numbers], dtype=torch.int64)


@lru_cache(maxsize=1)
def _sentences_file() -> Any:  # noqa: ANN401
    return json.loads(Path(__file__).with_name("sentences.json").read_text(encoding="utf-8"))


@lru_cache(maxsize=2)
def _compose(rows: int, key: int = 0) -> list[tuple[str, int]]:
    """Distinct sentences in a fixed order; 0 is the key of the public ones."""
    rng = seeds.numpy_generator(key, "sentences", "public")
    templates: list[tuple[str, int]] = _sentences_file()["templates"]
    composed: dict[str, int] = {}
    while len(composed) < rows:
        template, label = templates[rng.integers(len(templates))]
        composed[_fill(template, rng)] = label
    return list(composed.items())


def _fill(template: str, rng: np.random.Generator) -> str:
    """Draw a word for each slot; ``{name}`` and ``{name2}`` never get the same word."""
    words: dict[str, list[str]] = _sentences_file()["words"]
    orders = {slot: rng.permutation(words[slot]).tolist() for slot in _SLOT.findall(template)}
    text = _SLOT.sub(lambda slot: str(orders[slot[1]].pop()), template)
    return text[0].upper() + text[1:]


class Survey(Builtin):
    """944 answers to the American National Election Study of 1996, to tell votes from.

    Five columns of whole numbers and four of seven categories each; the class is the vote that a
    person expects to cast. The file is the subset of the study that statsmodels ships as ``anes96``
    and that is in the public domain, without its derived column, in an order drawn once.

    ``population`` is that of the place, in thousands; ``tv_news`` the days a week on which the
    person watches it; ``education`` has seven levels and ``income`` 24 bands, which are taken as
    numbers; views are from extremely liberal to extremely conservative, ``party`` from strong
    Democrat to strong Republican. A row is an image of 33 channels of one pixel.
    """

    modality: ClassVar[Literal["image", "text"]] = "image"
    class_names: ClassVar[tuple[str, ...]] = ("Clinton", "Dole")
    sizes: ClassVar[dict[str, int]] = {"train": 480, "test": 144, "public": 320}
    columns: ClassVar[tuple[Column, ...]] = SURVEY

    def read(self, split: str, numbers: range) -> tuple[Tensor, Tensor]:
        """Inputs float32 ``(row, 33, 1, 1)`` in [0, 1], see ``Column``, and votes."""
        before = list(self.sizes).index(split)
        start = sum(list(self.sizes.values())[:before])
        rows = _answers()[[start + number for number in numbers]]
        return encoded(self.columns, rows[:, :-1])[:, :, None, None], rows[:, -1]


@lru_cache(maxsize=1)
def _answers() -> Tensor:
    """Whole numbers ``(row, column)``, the class last."""
    path = Path(__file__).with_name("survey.csv")
    return torch.from_numpy(np.loadtxt(path, delimiter=",", skiprows=1, dtype=np.int64))
