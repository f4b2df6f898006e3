"""A metric: one number for each private example; written 2026."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from fedsim.metrics.base import Examples
from fedsim.metrics.images import ImageMetric, pixels


@dataclass(frozen=True)
class MeanAbsoluteError(ImageMetric):
    """Mean over channels and pixels of the absolute difference."""

    name: ClassVar[str] = "mae"
    unit: ClassVar[str] = "pixel"
    attacker_wants: ClassVar[Literal["higher", "lower"]] = "lower"

    def score(self, guess: Examples, truth: Examples) -> Tensor:
        """Float64 ``(batch,)`` in [0, 1]."""
        guessed, private = pixels(guess, truth)
        return (guessed - private).abs().flatten(1).mean(1)
