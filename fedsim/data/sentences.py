"""Invented messages, some of them sensitive, in place of real private texts."""

from __future__ import annotations

import json
import re
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from fedsim import seeds
from fedsim.data.builtin import Builtin

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
        return _rows(_compose(self.sizes["public"]) if public else _file()[split], numbers)

    def draw(self, key: int, numbers: range) -> tuple[tuple[str, ...], Tensor]:
        """As ``read``, composed from the templates by the key."""
        return _rows(_compose(self.drawn, key), numbers)


def _rows(rows: list[tuple[str, int]], numbers: range) -> tuple[tuple[str, ...], Tensor]:
    texts = tuple(rows[number][0] for number in numbers)
    return texts, torch.tensor([rows[number][1] for number in numbers], dtype=torch.int64)


@lru_cache(maxsize=1)
def _file() -> Any:  # noqa: ANN401
    return json.loads(Path(__file__).with_name("sentences.json").read_text(encoding="utf-8"))


@lru_cache(maxsize=2)
def _compose(rows: int, key: int = 0) -> list[tuple[str, int]]:
    """Distinct sentences in a fixed order; 0 is the key of the public ones."""
    rng = seeds.numpy_generator(key, "sentences", "public")
    templates: list[tuple[str, int]] = _file()["templates"]
    composed: dict[str, int] = {}
    while len(composed) < rows:
        template, label = templates[rng.integers(len(templates))]
        composed[_fill(template, rng)] = label
    return list(composed.items())


def _fill(template: str, rng: np.random.Generator) -> str:
    """Draw a word for each slot; ``{name}`` and ``{name2}`` never get the same word."""
    words: dict[str, list[str]] = _file()["words"]
    orders = {slot: rng.permutation(words[slot]).tolist() for slot in _SLOT.findall(template)}
    text = _SLOT.sub(lambda slot: str(orders[slot[1]].pop()), template)
    return text[0].upper() + text[1:]
