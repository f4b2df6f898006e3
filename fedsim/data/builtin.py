"""Interface of the data sets that come with fedsim."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, Literal

from torch import Tensor

from fedsim.columns import Column


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
