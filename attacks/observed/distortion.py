"""What an update of a single example shows of its own distortion: noise, rounding, zeros, signs."""

from dataclasses import dataclass, replace
from statistics import median

import torch
from torch import Tensor

from attacks.observed.labels import Head
from attacks.observed.readings import FULL_SHARE, Reading, read
from fedsim.types import Tensors

_ROUNDED_ZERO = 0.2
"""Rounding error, as a share of the smallest entry, that explains a zero."""
_FLOAT_SUMS = 1e-6
"""Error of a client's own float32 sums, as a share of a tensor's rms."""


@dataclass(frozen=True)
class Distortion:
    """The coordinates of an update, one tensor after another, and what is known of each.

    Attributes:
        values: received, ``(coordinate,)`` in float64.
        variance: of noise and rounding, ``(coordinate,)``.
        sizes: number of coordinates of each tensor.
        sent: bool ``(coordinate,)``, those that pruning left; all if nothing was pruned.
        signs: whether each tensor has but one magnitude.
    """

    values: Tensor
    variance: Tensor
    sizes: tuple[int, ...]
    sent: Tensor
    signs: bool

    @property
    def pruned(self) -> bool:
        """Whether coordinates were zeroed."""
        return not bool(self.sent.all())

    @property
    def bound(self) -> Tensor:
        """Smallest magnitude that was kept: where the largest were, none of the others is above.

        Zeros that rounding made were sent as well, and bound nothing.
        """
        sizes = self.values[self.sent].abs()
        return sizes[sizes > 0].min()


def read_distortion(gradient: Tensors, received: Tensors, length: float, head: Head) -> Distortion:
    """Noise, rounding, zeros and signs, as the update itself shows them.

    The gradient of the last layer, weight beside bias, is ``(softmax - one_hot) [h, 1]^T`` for one
    example, hence of rank 1. Whatever the update carries beyond that is noise, whose variance is
    the energy beyond the first singular value by the degrees of freedom that are left. What the
    wire's format and a grid of values explain is subtracted, since it differs from one coordinate
    to the next.

    Args:
        gradient: observed, in float64.
        received: the same as it crossed the wire.
        length: what the update was divided by.
        head: the last layer, whose weight and bias were sent.
    """
    readings = _on_one_grid({k: read(length * value) for k, value in gradient.items()})
    rounding = {
        name: _rounding(reading, received[name]) / length**2
        + (_FLOAT_SUMS**2) * gradient[name].square().mean()
        for name, reading in readings.items()
    }
    values, known = _flat(gradient), _flat(rounding)
    sizes = tuple(value.numel() for value in gradient.values())
    pairs = [(readings[name], value) for name, value in gradient.items()]
    grid = (
        torch.cat([value.new_full((value.numel(),), reading.step) for reading, value in pairs]) > 0
    )
    # Other zeros that rounding does not explain were pruned: every input of the layers is alive.
    least = values[values != 0].abs().min()
    zeros = (values == 0) & ~grid & (known.sqrt() < _ROUNDED_ZERO * least)
    pruned = float(zeros.double().mean()) > 1 - FULL_SHARE
    sent = ~zeros if pruned else torch.ones_like(zeros)
    if all(reading.signs or int(reading.sent.sum()) < 2 for reading, value in pairs if value.any()):
        return Distortion(values, known, sizes, sent, signs=True)
    noise = 0.0 if pruned else _beyond_rank_one(gradient, rounding, head)
    return Distortion(values, known + noise, sizes, sent, signs=False)


def _on_one_grid(readings: dict[str, Reading]) -> dict[str, Reading]:
    """With the grid of most entries for tensors of too few entries to show theirs.

    Clients quantise all tensors alike: with one step, or with as many steps up to the largest entry
    of each. A bias that is taken for exact outweighs all that is known to be rounded.
    """
    shown = [reading for reading in readings.values() if reading.step]
    covered = sum(reading.value.numel() for reading in shown)
    if 2 * covered <= sum(reading.value.numel() for reading in readings.values()):
        return readings
    levels = median(float(reading.value.abs().max()) / reading.step for reading in shown)
    coarse = max(reading.step for reading in shown)
    return {
        name: reading
        if reading.step or reading.signs or not reading.value.any()
        else replace(reading, step=min(coarse, float(reading.value.abs().max()) / levels))
        for name, reading in readings.items()
    }


def _flat(tensors: Tensors) -> Tensor:
    return torch.cat([value.flatten() for value in tensors.values()])


def _rounding(seen: Reading, received: Tensor) -> Tensor:
    """Variance of what the wire's format or a grid takes from each coordinate."""
    # Twice as much on a grid, since rounding to it may be random.
    return seen.half_step(received).square() * (2 if seen.step else 1) / 3


def _beyond_rank_one(gradient: Tensors, rounding: Tensors, head: Head) -> float:
    parts = [
        torch.cat([tensors[head.weight], tensors[str(head.bias)][:, None]], 1)
        for tensors in (gradient, rounding)
    ]
    rows, columns = parts[0].shape
    freedom = (rows - 1) * (columns - 1)
    rest = torch.linalg.svdvals(parts[0])[1:].square().sum() / freedom
    return float((rest - parts[1].mean()).clamp(min=0))
