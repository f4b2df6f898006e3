"""What is settled of each text before a search, and how candidates are compared."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from attacks.texts.label_search import LabelSearch


@dataclass(frozen=True, slots=True)
class Frames:
    """What is settled before the search. A lane is one start of one victim.

    Attributes:
        ids: special tokens where they stand, ``(victim, lane, sentence, token)``.
        mask: 1 where there is a token, likewise.
        free: whether a token is searched for, likewise.
        labels: what stands for the labels, ``(victim, lane, ...)``.
        meaning: makes labels of them.
    """

    ids: Tensor
    mask: Tensor
    free: Tensor
    labels: Tensor
    meaning: LabelSearch


@dataclass(frozen=True, slots=True)
class LossWeights:
    """How much counts beside the gradient, and how much is computed at once.

    Attributes:
        norm: of the squared difference between the mean norm of the guess and of the vocabulary.
        language: of the prior's loss, in nats a token.
        lanes: guesses that share a forward pass.
    """

    norm: float
    language: float
    lanes: int


class Lowest:
    """The candidate of lowest score; NaN never wins over anything but nothing."""

    def __init__(self) -> None:
        self.score = float("inf")
        self._candidate: Tensor | None = None
        self.extra: tuple[Tensor, int, float]

    @property
    def candidate(self) -> Tensor:
        """The one kept; the first one offered, if all scores were NaN."""
        assert self._candidate is not None
        return self._candidate

    def offer(
        self, scores: Tensor, candidates: Tensor, extra: tuple[Tensor, int, float] | None = None
    ) -> None:
        """Keep the best of these, if it is better; ``extra`` is kept with it.

        Args:
            scores: ``(candidate,)``, lower is better.
            candidates: ``(candidate, ...)``.
            extra: labels, lane and distance of what is offered.
        """
        number = int(scores.nan_to_num(torch.inf).argmin())
        if self._candidate is None or float(scores[number]) < self.score:
            self.score = float(scores[number].nan_to_num(torch.inf))
            self._candidate = candidates[number]
            if extra is not None:
                self.extra = extra


def ordered(guess: Tensor, orders: Tensor) -> Tensor:
    """``guess (sentence, token, width)`` in each of ``orders (order, sentence, token)``."""
    index = orders[..., None].expand(*orders.shape, guess.shape[-1])
    return guess.expand(len(orders), *guess.shape).gather(2, index)
