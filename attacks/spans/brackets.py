"""The interval in which each entry of a gradient must lie for the update to arrive as it did."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from attacks.observed.cuts import CUTS as OBSERVED
from attacks.spans.cuts import CUTS
from fedsim.capture import Observation

_HALVES = (torch.float16, torch.bfloat16)
_COARSEST = 1024.0  # steps up to the largest entry of a tensor that is rounded to a grid


@dataclass(frozen=True)
class Bracket:
    """Entry-wise bounds of one tensor of the update, in float32.

    Attributes:
        value: as received.
        lower: lower bounds; minus infinity where nothing is known.
        upper: upper bounds.
        signs: whether only the signs were sent, so that the scale is lost.
        complete: whether every entry was sent.
    """

    value: Tensor
    lower: Tensor
    upper: Tensor
    signs: bool
    complete: bool

    def compare(self, guess: Tensor, scale: float) -> tuple[int, int]:
        """Entries of ``scale * guess`` out of bounds, and entries that could have been.

        Rounding at the client is allowed for. Signs tell only where the guess is far from zero.
        """
        size = float(guess.square().mean().sqrt())
        if self.signs:
            clear = guess.abs() > CUTS.clear_sign * size
            wrong = (guess < self.lower) | (guess > self.upper)
            return int((wrong & clear).sum()), int((clear & (self.value != 0)).sum())
        guess, margin = scale * guess, CUTS.gradient_rounding * scale * size
        wrong = (guess < self.lower - margin) | (guess > self.upper + margin)
        telling = self.lower.isfinite() | self.upper.isfinite()
        return int((wrong & telling).sum()), int(telling.sum())

    @property
    def sharp(self) -> Tensor:
        """Entries that rounding has changed by little, by which a scale is fitted."""
        return (self.upper - self.lower < CUTS.sharp_width * self.value.abs()) & (self.value != 0)


def brackets(observation: Observation, names: Sequence[str]) -> dict[str, Bracket]:
    """The brackets of weights, from too few entries of which nothing can be told."""
    found: dict[str, Bracket] = {}
    optimizer = observation.knowledge.optimizer if observation.kind == "weights" else None
    for name, value in observation.update(names).items():
        sent = int((value != 0).sum())
        if value.dim() == 2 and value.isfinite().all() and sent >= CUTS.fewest_entries:
            found[name] = _bracket(value, observation.received[name], optimizer)
    return found


def _bracket(value: Tensor, received: Tensor, optimizer: str | None) -> Bracket:
    sent = value != 0
    sizes = value[sent].abs()
    one_size = float(sizes.max() - sizes.min()) <= OBSERVED.equal_magnitude * float(sizes.max())
    below, above = torch.full_like(value, -torch.inf), torch.full_like(value, torch.inf)
    if one_size or optimizer in {"adam", "adamw"}:
        # The first step of Adam is a sign.
        low, high = below.masked_fill(value > 0, 0), above.masked_fill(value < 0, 0)
        return Bracket(value.float(), low.float(), high.float(), signs=True, complete=False)
    alive = sent.any(1, keepdim=True) & sent.any(0, keepdim=True)
    half, grid = _half_step(value, received)
    # A zero of an update that is not on a grid was pruned, unless its whole row is zero.
    complete = grid or float(sent[alive].double().mean()) >= OBSERVED.full_share
    low, high = value - half, value + half
    if not complete:
        low, high = torch.where(sent, low, below), torch.where(sent, high, above)
    return Bracket(value.float(), low.float(), high.float(), signs=False, complete=complete)


def _half_step(value: Tensor, received: Tensor) -> tuple[Tensor, bool]:
    """Half the distance to the next number that could have been sent; whether on an even grid."""
    if received.dtype in _HALVES:
        return _spacing(received.double(), received.dtype) / 2, False
    for dtype in _HALVES:
        if torch.equal(value.to(dtype).double(), value):
            return _spacing(value, dtype) / 2, False
    sizes = value[value != 0].abs()
    step = float(sizes.min())
    if float(sizes.max()) < _COARSEST * step:
        steps = sizes / step
        if float((steps - steps.round()).abs().max()) < CUTS.grid_error:
            # The mean over many steps is nearer to the true step than the smallest entry.
            step = float(sizes.sum() / steps.round().sum())
            return torch.full_like(value, step / 2), True
    return _spacing(received.double(), received.dtype) / 2, False


def _spacing(value: Tensor, dtype: torch.dtype) -> Tensor:
    """Distance between neighbouring numbers of the format at each value."""
    kind = torch.finfo(dtype)
    exponent = value.abs().clamp(min=kind.smallest_normal).log2().floor()
    return kind.eps * exponent.exp2()


def scale_of(found: Mapping[str, Bracket], guess: Mapping[str, Tensor]) -> float:
    """The multiple of the guess that is nearest to the entries which arrived nearly unrounded."""
    both = own = 0.0
    for name, one in found.items():
        if not one.signs:
            kept = one.sharp
            mine = guess[name][kept].double()
            both += float(mine @ one.value[kept].double())
            own += float(mine @ mine)
    return both / own if own else 0.0
