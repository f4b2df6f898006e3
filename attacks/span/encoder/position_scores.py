"""What the first layer alone says of the places and the number of a sentence's words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

_NEAREST = 12  # tokens nearest to the span at a place, which may be words of the batch


@dataclass(frozen=True)
class PositionScores:
    """Which tokens of the batch stand at which place, before any attention.

    At every place the tokens of the batch are nearer to the span than others, for a token's
    embedding outweighs that of its place, and the strongest of them are nearest everywhere. What
    tells the place of a token is how near it is there compared with other places.

    Attributes:
        statistics: of :class:`Evidence`, ``(position, vocabulary)``.
        start: token that begins every sentence.
        end: token that ends every sentence.
    """

    statistics: Tensor
    start: int
    end: int

    def __post_init__(self) -> None:
        """Subtract the mean over places."""
        inner = self.statistics.clone()
        inner[:, [self.start, self.end]] = torch.inf
        object.__setattr__(self, "_inner", inner)
        object.__setattr__(self, "_centred", inner - inner[1:].mean(0))
        size = min(_NEAREST, inner.shape[1])
        few = inner[1:].topk(size, dim=1, largest=False).values.median(1).values
        object.__setattr__(self, "_ends", self.statistics[1:, self.end] - few)

    _inner: Tensor = None  # type: ignore[assignment]
    _centred: Tensor = None  # type: ignore[assignment]
    _ends: Tensor = None  # type: ignore[assignment]

    @property
    def longest(self) -> int:
        """Tokens of the longest sentence."""
        return len(self.statistics)

    def lengths(self, possible: Sequence[int], count: int) -> list[int]:
        """The lengths that the end token's place makes likeliest."""
        return sorted(possible, key=lambda n: float(self._ends[n - 2]))[:count]

    def rivals(self, length: int, count: int) -> Tensor:
        """The likeliest tokens at each place ``(place, rival)``; both ends are meaningless.

        Behind the ``count`` that stand out from other places follow the two nearest ones, which are
        the better choice for an update with little noise.
        """
        size = min(_NEAREST, self._inner.shape[1])
        near = self._inner[:length].topk(size, dim=1, largest=False).indices
        bag = near[1 : length - 1].unique()
        best = self._centred[:length, bag].topk(min(count, len(bag)), dim=1, largest=False)
        return torch.cat([bag[best.indices], near[:, :2]], 1)

    def starts(self, length: int) -> Tensor:
        """Two sentences of this many tokens: those that stand out, and the nearest ones."""
        lines = self.rivals(length, 1)[:, :2].T.clone()
        lines[:, 0], lines[:, -1] = self.start, self.end
        return lines
