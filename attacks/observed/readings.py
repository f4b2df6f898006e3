"""What a received tensor says of each entry of the client's gradient: a number or an interval."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedsim.knowledge import MULTIPLES
from fedsim.types import Tensors

HALVES = (torch.bfloat16, torch.float16)  # the coarser first: float16 may hold its numbers
EQUAL_MAGNITUDE = 1e-3
"""Relative spread of magnitudes that are one number, as of signs."""
FULL_SHARE = 0.98
"""Share of nonzero entries from which zeros are no pruning; of those in living rows and columns, or
of a whole update."""
_KEPT_LARGEST = 0.1
"""Smallest kept magnitude of a pruned tensor, as a share of the median one, from which the largest
entries were kept and not random ones."""
_GRID_SHARE = 0.95
"""Share of entries on a grid from which a tensor was rounded to it."""
_GRID_ERROR = 0.01
"""Largest distance of an entry from a grid, in steps."""
_MOST_STEPS = 1024.0
"""Steps from zero to the largest entry of a grid, below which it is one."""
_FEW_STEPS = 8
"""Steps from zero within which the smallest gap of a grid counts them."""
_ONE_SIZE = 0.01
"""Share by which an entry is as large as the largest."""
_SHARING_IT = 0.5
"""Half of the next judges alike; twice it misses AdamW. Share of a step's entries of one size: Adam
1, AdamW with silent units .65, a gradient .001."""
_FEWEST_ON_GRID = 64
"""Entries of a tensor that are not zero, below which no grid shows."""
HEAVILY_PRUNED = 0.03
"""Share of entries that were sent, below which an embedding row tells more of a word than the
layers behind it."""


@dataclass(frozen=True)
class Reading:
    """An entry-wise interval that contains the gradient, up to a scale and to white noise.

    Attributes:
        value: the update as received; of signs, the signs.
        lower: lower bounds; equal to ``upper`` where the entry itself was sent.
        upper: upper bounds; infinite where nothing is known.
        step: distance of the grid that all entries were rounded to; 0 without one.
        signs: whether signs alone were sent, so that the scale is lost.
    """

    value: Tensor
    lower: Tensor
    upper: Tensor
    step: float = 0.0
    signs: bool = False

    @property
    def complete(self) -> bool:
        """Whether every entry was sent, so that nothing has to be imputed."""
        return torch.equal(self.lower, self.upper)

    @property
    def sent(self) -> Tensor:
        """The entries that were sent: all, or those that are not zero."""
        nonzero = self.value != 0
        return torch.ones_like(nonzero) if self.complete and not self.signs else nonzero

    def half_step(self, received: Tensor) -> Tensor:
        """Half the distance of each entry to the next number that could have been sent.

        Args:
            received: the tensor as it crossed the wire: the update itself, or weights.
        """
        if self.step:
            return torch.full_like(self.value, self.step / 2)
        if received.dtype not in HALVES and not self.signs:
            for dtype in HALVES:
                if torch.equal(self.value.to(dtype).to(self.value), self.value):
                    return _spacing(self.value, dtype) / 2
        return _spacing(received.to(self.value), received.dtype) / 2

    def less(self, part: Tensor) -> Reading:
        """What is known of the gradient without a part of it, in the same scale."""
        return replace(
            self, value=self.value - part, lower=self.lower - part, upper=self.upper - part
        )


def read(value: Tensor, optimizer: str | None = None) -> Reading:
    """Tell signs, the largest entries, random entries and whole tensors from one another.

    No declaration is needed, since the values show what was done: signs have one magnitude; after
    pruning many entries are zero, and the smallest kept one bounds the others if the largest were
    kept. The first step of Adam is a sign, and its next steps nearly so. Zeros of a tensor that was
    rounded to a grid are rounded, too.

    Args:
        value: a weight's update, any shape; rows and columns of zeros only are zeros.
        optimizer: the client's optimizer; None for a multiple of a gradient.
    """
    sent = value != 0
    sizes = value[sent].abs()
    least, largest = (float(sizes.min()), float(sizes.max())) if len(sizes) else (0.0, 0.0)
    infinite = torch.full_like(value, torch.inf)
    # The median alone would take int8 of a heavy-tailed tensor, mostly one step, for signs.
    one_size = largest - least <= EQUAL_MAGNITUDE * largest
    if optimizer not in MULTIPLES or (one_size and len(sizes) > 1):
        sign = value.sign()
        low, high = torch.zeros_like(value), torch.zeros_like(value)
        low, high = low.masked_fill(sign < 0, -torch.inf), high.masked_fill(sign > 0, torch.inf)
        return Reading(sign, low, high, signs=True)
    step = _step(sizes, least, largest)
    alive = sent.any(-1, keepdim=True) & sent.any(0, keepdim=True)
    share = float(sent[alive.expand_as(sent)].double().mean())
    if step or not len(sizes) or share >= FULL_SHARE:
        return Reading(value, value, value, step)
    kept_largest = least >= _KEPT_LARGEST * float(sizes.median())
    bound = torch.full_like(value, least) if kept_largest else infinite
    unknown = ~sent & alive
    return Reading(value, torch.where(unknown, -bound, value), torch.where(unknown, bound, value))


def on_grid(update: Tensors) -> bool:
    """Whether most entries were rounded to a grid; single tensors may look like it by chance."""
    return _most(update, [bool(read(value).step) for value in update.values()])


def coarseness(update: Tensors, optimizer: str | None = None) -> str:
    """What a client did to its update that hides digits, as the values show; empty if nothing.

    Args:
        update: as received.
        optimizer: as for ``read``.
    """
    if optimizer in MULTIPLES and _most(update, [_of_one_size(value) for value in update.values()]):
        return (
            "the entries of the update are of one size, as signs and the first step of Adam and "
            "its like have them, which is no multiple of a gradient: pass optimizer=adam where the "
            "clients use it"
        )
    if on_grid(update):
        return "the update was rounded to a grid, as int8 does, which hides a proof"
    if _most(update, [_largest_alone(value) for value in update.values()]):
        return "only the largest entries of the update were sent, which hides a proof"
    return ""


def _most(update: Tensors, shown: Sequence[bool]) -> bool:
    """Whether tensors with most of the entries show it."""
    sizes = [value.numel() for value in update.values()]
    return 2 * sum(n for n, yes in zip(sizes, shown, strict=True) if yes) > sum(sizes)


def _of_one_size(value: Tensor) -> bool:
    """Whether most entries that are not 0 are as large as the largest."""
    sizes = value[value != 0].abs()
    near = sizes >= (1 - _ONE_SIZE) * sizes.max() if len(sizes) > 1 else sizes > 0
    return len(sizes) > 1 and float(near.double().mean()) > _SHARING_IT


def _largest_alone(value: Tensor) -> bool:
    reading = read(value)
    return not reading.complete and not reading.signs and bool(reading.upper.isfinite().all())


def _step(sizes: Tensor, least: float, largest: float) -> float:
    """Distance of the grid that entries of these sizes lie on; 0 if they do not."""
    if len(sizes) < _FEWEST_ON_GRID or not 0 < largest < _MOST_STEPS * least:
        return 0.0
    levels = sizes.unique()
    gaps = levels.diff(prepend=levels.new_zeros(1))
    smallest = float(gaps[gaps > _GRID_ERROR * least].min())
    # Weights have fewer digits than their change: there the smallest gap errs by more than a mean.
    low = sizes[sizes < _FEW_STEPS * smallest]
    for step in (smallest, float(low.sum() / (low / smallest).round().sum())):
        steps = sizes / step
        near = (steps - steps.round()).abs() < _GRID_ERROR
        if largest < _MOST_STEPS * step and float(near.double().mean()) >= _GRID_SHARE:
            # The mean over many steps is nearer to the true one than the smallest.
            return float(sizes.sum() / steps.round().sum())
    return 0.0


def _spacing(value: Tensor, dtype: torch.dtype) -> Tensor:
    """Distance between neighbouring numbers of the format at each value."""
    kind = torch.finfo(dtype)
    exponent = value.abs().clamp(min=kind.smallest_normal).log2().floor()
    return kind.eps * exponent.exp2()
