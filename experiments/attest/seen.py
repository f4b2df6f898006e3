"""One reply, with what several findings ask of it."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from statistics import median

from torch import Tensor, nn

from attacks.observed.readings import EQUAL_MAGNITUDE, read
from experiments.attest.noise import MANY, Null, at_most, nulls, rounding, wire_step
from experiments.captures.update import Update
from fedsim.knowledge import MULTIPLES
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
FEWEST = 64
"""Entries of a tensor from which a share of them, or a grid, is told."""
_DIGITS = 10.0
"""Half steps of the wire below the hundredth smallest entry, from which rounding makes no zeros."""
_MASKED = 1e-3
"""Share of zeros from which they were made after any noise, which has none. Half and twice judge 67
replies alike, as those of ``noise``."""
_NEAR = 0.01
"""Share of an entry's size, up to which rounding of weights leaves those of a cut beside it. Half
and twice judge the 134 alike."""


@dataclass(frozen=True)
class Reply:
    """A reply with what several findings ask of it.

    Attributes:
        victim: the reply.
    """

    victim: Update

    @cached_property
    def network(self) -> nn.Module:
        """As broadcast."""
        return self.victim.task.model(self.seen.sent)

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
        """The most noise that each tensor can carry, whatever made zeros, signs or a cut later."""
        return self.most_noise()

    def most_noise(self, *, kept_largest: bool = False) -> dict[str, float]:
        """Likewise; zeros may be known to have been smaller than what a tensor kept."""
        return {k: at_most(v, self._slack(k, kept_largest)) for k, v in self.update.items()}

    def _slack(self, name: str, kept_largest: bool) -> Tensor:
        """By how much each entry may have been larger before what was done to it last."""
        value, slack = self.update[name], self.steps[name]
        zero, sizes = value == 0, value.abs()
        top = ~zero & self.largest(name, float(sizes.max()))
        if self.masked:
            least = float(sizes[~zero].min()) if kept_largest and not zero.all() else math.inf
            slack = slack.where(~zero, slack + least)
        if self.signed:
            slack = slack.masked_fill(~zero, math.inf)
        elif not self.adam and int(top.sum()) >= TIED:
            slack = slack.masked_fill(top, math.inf)
        # A grid of so few entries is not seen.
        return slack + math.inf if self.on_grid and int((~zero).sum()) < FEWEST else slack

    @cached_property
    def on_grid(self) -> bool:
        """Whether most entries lie on the grid of their tensor."""
        return not self.one_size and most_of(self.update, lambda k: bool(read(self.update[k]).step))

    @cached_property
    def masked(self) -> bool:
        """Whether entries were left out one by one: noise has no zeros."""
        alive = sum(int(living(value).sum()) for value in self.update.values())
        return sum(int(self.left_out(k).sum()) for k in self.update) > _MASKED * alive

    def left_out(self, name: str) -> Tensor:
        """Zeros that neither rounding, nor silent rows or columns, explain."""
        value, zero = self.update[name], self.update[name] == 0
        if bool(zero.all()):
            return ~zero
        sizes = value[~zero].abs()
        least = float(sizes.kthvalue(-(-len(sizes) // 100)).values)
        return zero & (_DIGITS * self.steps[name] < least) & living(value)

    @cached_property
    def signed(self) -> bool:
        """Whether signs are all that is left of the entries, as no known step of Adam explains."""
        known = self.seen.knowledge
        if known.optimizer in MULTIPLES or known.learning_rate is None:
            return self.one_size
        longest = max(float(value.abs().max()) for value in self.update.values())
        return self.one_size and longest > (1 + _NEAR) * known.learning_rate

    @cached_property
    def nulls(self) -> list[Null]:
        """Null directions, without those that hold more than the whole tensor allows.

        Where entries were changed after any noise, those in which nothing stands are left.
        """
        task, even = self.victim.task, self.adam or self.one_size
        known = nulls(self.seen, task, self.network, even=even)
        return [n for n in known if n.silent or self._sounds(n)]

    def _sounds(self, null: Null) -> bool:
        if self.masked or self.signed or self.tied(null.where):
            return False
        return null.interval[0] <= self.bounds[null.where]

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


def living(value: Tensor) -> Tensor:
    """Entries of the rows and columns that moved."""
    moved = value != 0
    if value.dim() < 2:
        return moved.any().expand_as(moved)
    return (moved.any(1, keepdim=True) & moved.any(0, keepdim=True)).expand_as(moved)
