"""One reply, with what several findings ask of it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from statistics import median

from torch import Tensor, nn

from attacks.observed.readings import EQUAL_MAGNITUDE
from experiments.attest.noise import MANY, Null, bounds, nulls, rounding, wire_step
from experiments.captures.update import Update
from fedsim.store.capture import Observation
from fedsim.types import Tensors

_ADAM = 0.25
"""Median size of an entry beside the largest, of steps that each are as long as the next: five of
Adam have .35, noise .18, a gradient .1. Half takes noise for Adam, and twice misses five steps."""
_SEEN = 16.0
"""Half steps of the wire to the largest change, from which the sizes of entries show. Half and
twice judge the 134 replies of ``noise`` alike."""
TIED = 4
"""Entries of a tensor's largest size, and rows that hold them, from which a cut may have made them.
Noise makes no two entries equal, and a constant input makes those of a row. Of the
134, half leaves a cut open in 10 more, and twice denies one in 1 more."""
_NEAR = 0.01
"""Share of an entry's size, up to which rounding of weights leaves those of a cut beside it. Half
and twice judge the 134 alike."""


@dataclass(frozen=True)
class Reply:
    """A reply with what several findings ask of it.

    Attributes:
        victim: the reply.
        network: as broadcast.
    """

    victim: Update
    network: nn.Module

    @property
    def seen(self) -> Observation:
        """What the server has of it."""
        return self.victim.observation

    @cached_property
    def update(self) -> Tensors:
        """Each tensor as a matrix of rows, in float64."""
        parts = self.seen.update().items()
        return {k: v.flatten(1) if v.dim() > 2 else v for k, v in parts if v.numel()}

    @cached_property
    def steps(self) -> Tensors:
        """Half a step of the wire at each entry."""
        return {
            k: wire_step(v, self.seen.received[k].reshape(v.shape)) for k, v in self.update.items()
        }

    @cached_property
    def bounds(self) -> dict[str, float]:
        """The most noise that each tensor can carry."""
        return bounds(self.seen)

    @cached_property
    def nulls(self) -> list[Null]:
        """Null directions, without those that hold more than the whole tensor allows."""
        task, even = self.victim.task, self.adam or self.one_size
        known = nulls(self.seen, task, self.network, even=even)
        least = {n.where: math.inf if self.tied(n.where) else n.interval[0] for n in known}
        return [n for n in known if n.silent or least[n.where] <= self.bounds[n.where]]

    @cached_property
    def one_size(self) -> bool:
        """Whether the entries of each tensor are of one size, up to the wire's digits."""
        return most_of(self.update, self._of_one_size)

    @cached_property
    def coarse(self) -> bool:
        """Whether the digits of the wire hide most of the change."""
        return most_of(self.update, self._hidden)

    def _hidden(self, name: str) -> bool:
        """Whether all of a tensor's entries may be rounding; ``steps``, no smaller, are at hand."""
        least = float(self.update[name].abs().max()) / _SEEN
        return least < float(self.steps[name].max()) and least < float(
            rounding(self.seen.received[name]).max()
        )

    def largest(self, name: str, size: float) -> Tensor:
        """Where a tensor's entries are as large as this, up to what the wire rounds of weights."""
        slack = 0 * self.steps[name] if self.seen.kind == "gradient" else 4 * self.steps[name]
        return self.update[name].abs() >= size * (1 - 1e-6) - slack.clamp(max=_NEAR * size)

    def tied(self, name: str) -> bool:
        """Whether several entries may be as large as a tensor's largest, as a cut makes them."""
        value = self.update[name]
        size, coarse = float(value.abs().max()), self.seen.kind != "gradient" and value.dim() > 1
        hidden = coarse and 4 * float(self.steps[name].max()) > _NEAR * size
        return size > 0 and (hidden or int(self.largest(name, size).sum()) >= TIED)

    def _of_one_size(self, name: str) -> bool:
        value = self.update[name]
        sizes = value[value != 0].abs()
        if len(sizes) < 2 or self._hidden(name):
            return False
        slack = 2 * float(self.steps[name].max()) + EQUAL_MAGNITUDE * float(sizes.max()) * 1e-2
        return float(sizes.max() - sizes.min()) <= slack

    @cached_property
    def even(self) -> bool:
        """Whether entries are nearly as large as the largest, as steps of Adam make them."""
        shares = [
            float(value[value != 0].abs().median() / value.abs().max())
            for value in self.update.values()
            if value.count_nonzero() >= MANY
        ]
        return bool(shares) and median(shares) > _ADAM

    @property
    def adam(self) -> bool:
        """Whether its steps are known to divide entries by their size, or look like it."""
        known = self.seen.knowledge.optimizer
        if self.seen.kind == "gradient" or known in ("sgd", "momentum"):
            return False
        return known is not None or self.even or self.one_size


def most_of(update: Tensors, holds: Callable[[str], bool]) -> bool:
    """Whether tensors with most of the entries that moved have it."""
    sizes = {name: value.numel() for name, value in update.items() if bool(value.any())}
    return bool(sizes) and 2 * sum(n for k, n in sizes.items() if holds(k)) > sum(sizes.values())
