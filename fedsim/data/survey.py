"""Answers of voters to a survey, some of them sensitive: a table of numbers and categories."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from fedsim.columns import SURVEY, Column, encoded
from fedsim.data.builtin import Builtin


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
        rows = _file()[[start + number for number in numbers]]
        return encoded(self.columns, rows[:, :-1])[:, :, None, None], rows[:, -1]


@lru_cache(maxsize=1)
def _file() -> Tensor:
    """Whole numbers ``(row, column)``, the class last."""
    path = Path(__file__).with_name("survey.csv")
    return torch.from_numpy(np.loadtxt(path, delimiter=",", skiprows=1, dtype=np.int64))
