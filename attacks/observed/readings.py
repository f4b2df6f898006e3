"""What a received tensor says of each entry of the client's gradient: a number or an interval."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from attacks.observed.cuts import CUTS


@dataclass(frozen=True)
class Reading:
    """An entry-wise interval that contains the gradient, up to a scale and to white noise.

    Attributes:
        value: the update as received.
        lower: lower bounds; equal to ``upper`` where the entry itself was sent.
        upper: upper bounds; infinite where nothing is known.
    """

    value: Tensor
    lower: Tensor
    upper: Tensor

    @property
    def complete(self) -> bool:
        """Whether every entry was sent, so that nothing has to be imputed."""
        return torch.equal(self.lower, self.upper)

    def less(self, part: Tensor) -> Reading:
        """What is known of the gradient without a part of it, in the same scale."""
        return Reading(self.value - part, self.lower - part, self.upper - part)


def read(value: Tensor, optimizer: str | None = None) -> Reading:
    """Tell signs, the largest entries, random entries and whole tensors from one another.

    No declaration is needed, since the values show what was done: signs have one magnitude; after
    pruning many entries are zero, and the smallest kept one bounds the others if the largest were
    kept. The first step of Adam is a sign, and its next steps nearly so.

    Args:
        value: a weight's update, any shape; rows and columns of zeros only are zeros.
        optimizer: the client's optimizer; None for a multiple of a gradient.
    """
    sent = value != 0
    least, typical, largest = _magnitudes(value, sent)
    infinite = torch.full_like(value, torch.inf)
    # The median alone would take int8 of a heavy-tailed tensor, mostly one step, for signs.
    one_size = largest - least <= CUTS.equal_magnitude * largest
    if optimizer in {"adam", "adamw"} or (one_size and int(sent.sum()) > 1):
        sign = value.sign()
        low, high = torch.zeros_like(value), torch.zeros_like(value)
        return Reading(
            sign, low.masked_fill(sign < 0, -torch.inf), high.masked_fill(sign > 0, torch.inf)
        )
    alive = sent.any(-1, keepdim=True) & sent.any(0, keepdim=True)
    if float(sent[alive.expand_as(sent)].double().mean()) >= CUTS.full_share:
        return Reading(value, value, value)
    steps = value[sent] / least
    if float(((steps - steps.round()).abs() < 0.01).double().mean()) >= CUTS.quantized_share:
        return Reading(value, value, value)
    bound = infinite if least < CUTS.kept_largest * typical else torch.full_like(value, least)
    unknown = ~sent & alive
    return Reading(value, torch.where(unknown, -bound, value), torch.where(unknown, bound, value))


def _magnitudes(value: Tensor, sent: Tensor) -> tuple[float, float, float]:
    """The smallest, the median and the largest magnitude of the entries that were sent."""
    sizes = value[sent].abs()
    if not len(sizes):
        return 0.0, 0.0, 0.0
    return float(sizes.min()), float(sizes.median()), float(sizes.max())
