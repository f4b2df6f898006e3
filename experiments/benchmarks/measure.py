"""The lines that a benchmark prints, and the names of its parts."""

from __future__ import annotations

from dataclasses import dataclass

PARTS = ("capture", "workers", "text", "images", "ranks", "families", "gpu")


@dataclass(frozen=True)
class Measure:
    """One line of the benchmark."""

    name: str
    value: float
    unit: str
    goal: str

    def text(self) -> str:
        """For a terminal."""
        return f"{self.name:<58} {self.value:10.3f} {self.unit:<8} goal {self.goal}"
