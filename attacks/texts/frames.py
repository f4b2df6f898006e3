"""The fixed parts of each text in a search, and the choice among candidates."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from attacks.texts.label_search import LabelSearch


@dataclass(frozen=True, slots=True)
class Frames:
    """The parts of each lane that the search does not change; a lane is one start of one victim.

    Attributes:
        ids: special tokens in their places, int64 ``(victim, lane, sentence, token)``.
        mask: 1 for a token, 0 for padding; shaped as ``ids``.
        free: whether the token is searched for; shaped as ``ids``.
        labels: representation of the labels, ``(victim, lane, ...)``.
        meaning: turns that representation into labels.
    """

    ids: Tensor
    mask: Tensor
    free: Tensor
    labels: Tensor
    meaning: LabelSearch


class Lowest:
    """The candidate of lowest score; a NaN score loses against any other."""

    def __init__(self) -> None:
        self.score = float("inf")
        self._candidate: Tensor | None = None
        self.extra: tuple[Tensor, int, float]

    @property
    def candidate(self) -> Tensor:
        """The candidate kept; the first one offered if all scores were NaN."""
        assert self._candidate is not None
        return self._candidate

    def offer(
        self, scores: Tensor, candidates: Tensor, extra: tuple[Tensor, int, float] | None = None
    ) -> None:
        """Keep the best of these candidates if it beats the one kept, together with ``extra``.

        Args:
            scores: ``(candidate,)``, lower is better.
            candidates: ``(candidate, ...)``.
            extra: labels, lane and distance of the candidates.
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
