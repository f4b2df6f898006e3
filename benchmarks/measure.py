"""The lines that a benchmark prints, and the names of its parts."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

PARTS = ("capture", "workers", "text", "images", "ranks", "families", "stages", "gpu", "reference")


@dataclass(frozen=True)
class Measure:
    """One line of the benchmark; ``low`` and ``high`` are the quartiles of its repetitions."""

    name: str
    value: float
    unit: str
    goal: str
    low: float | None = None
    high: float | None = None

    @classmethod
    def of(cls, name: str, values: Sequence[float], unit: str, goal: str) -> Measure:
        """The median of at least two repetitions."""
        low, middle, high = statistics.quantiles(values, method="inclusive")
        return cls(name, middle, unit, goal, low, high)

    def text(self) -> str:
        """For a terminal."""
        spread = "" if self.low is None else f" [{self.low:.3f}, {self.high:.3f}]"
        return f"{self.name:<58} {self.value:10.3f}{spread} {self.unit:<8} goal {self.goal}"
