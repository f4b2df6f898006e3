"""What a data set that comes with fedsim offers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, Literal

from torch import Tensor


class Builtin(ABC):
    """Rows that need no file and no network, the same on every machine.

    Attributes:
        sizes: number of rows in each split; ``public`` is what an attacker may own.
    """

    modality: ClassVar[Literal["image", "text"]]
    class_names: ClassVar[tuple[str, ...]]
    sizes: ClassVar[dict[str, int]]

    @abstractmethod
    def read(self, split: str, numbers: range) -> tuple[Tensor | tuple[str, ...], Tensor]:
        """Inputs as in ``Rows`` and labels int64 ``(row,)`` of these rows."""
