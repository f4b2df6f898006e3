"""Common part of the text metrics: one ratio for each pair, and the value of an empty text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, TypeVar

import torch
from torch import Tensor

from fedsim.metrics.base import Metric

T = TypeVar("T", bound=Sequence[object])


@dataclass(frozen=True)
class TextMetric(Metric):
    """A ratio in [0, 1], higher for a better guess: 1 if both texts are empty, 0 if only one is."""

    unit: ClassVar[str] = "1"
    attacker_wants: ClassVar[Literal["higher", "lower"]] = "higher"
    modality: ClassVar[Literal["image", "text", "any"]] = "text"


def compare(guesses: Sequence[T], truths: Sequence[T], ratio: Callable[[T, T], float]) -> Tensor:
    """``ratio(guess, truth)`` of each pair, float64 ``(batch,)``; ``ratio`` gets no empty text."""
    values = [
        ratio(guess, truth) if guess and truth else float(not guess and not truth)
        for guess, truth in zip(guesses, truths, strict=True)
    ]
    return torch.tensor(values, dtype=torch.float64)
