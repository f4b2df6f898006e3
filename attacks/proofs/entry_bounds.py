"""The interval in which each entry of a gradient must lie for the update to arrive as it did."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from attacks.observed.readings import read
from attacks.proofs.cuts import CUTS
from fedsim.capture import Observation


@dataclass(frozen=True)
class EntryBounds:
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


def entry_bounds(observation: Observation, names: Sequence[str]) -> dict[str, EntryBounds]:
    """The bounds of each weight of which enough entries were sent."""
    bounds: dict[str, EntryBounds] = {}
    optimizer = observation.knowledge.optimizer if observation.kind != "gradient" else None
    for name, value in observation.update(names).items():
        sent = int((value != 0).sum())
        if value.dim() == 2 and value.isfinite().all() and sent >= CUTS.fewest_entries:
            bounds[name] = bounds_of(value, observation.received[name], optimizer)
    return bounds


def bounds_of(value: Tensor, received: Tensor, optimizer: str | None) -> EntryBounds:
    """The bounds of one weight: ``value`` of the update, as it came over the wire."""
    seen = read(value, optimizer)
    half = 0.0 if seen.signs else seen.half_step(received)
    # What was pruned is not bounded here: so many zeros would hide what is wrong elsewhere.
    low = torch.where(seen.sent, seen.lower - half, -torch.inf)
    high = torch.where(seen.sent, seen.upper + half, torch.inf)
    return EntryBounds(value.float(), low.float(), high.float(), seen.signs, seen.complete)


def scale_of(bounds: Mapping[str, EntryBounds], guess: Mapping[str, Tensor]) -> float:
    """The multiple of the guess that is nearest to the entries which arrived nearly unrounded."""
    both = square = 0.0
    for name, bound in bounds.items():
        if not bound.signs:
            sharp = bound.sharp
            mine = guess[name][sharp].double()
            both += float(mine @ bound.value[sharp].double())
            square += float(mine @ mine)
    return both / square if square else 0.0
