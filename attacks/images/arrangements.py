"""Which image a client took in which local step, by the update that follows from its classes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import combinations, product

import torch
from torch import Tensor

from attacks.observed.distance import cosine_distance
from attacks.observed.simulated_steps import SimulatedSteps
from fedsim.types import Batch, Tensors

_CLIMBS = 4
"""Random arrangements from which the best neighbour is followed."""


@dataclass(frozen=True)
class Arrangement:
    """Classes of a client's images, and the order in which its steps take them.

    Attributes:
        labels: int64 ``(example,)``, as the first epoch takes them.
        order: which image stands at each place of all steps, int64 ``(place,)``.
    """

    labels: Tensor
    order: Tensor

    def neighbours(self, steps: SimulatedSteps, classes: int) -> Iterator[Arrangement]:
        """All that differ by an exchange, or in one label."""
        yield from self.exchanged(steps)
        for place, other in product(range(len(self.labels)), range(classes)):
            labels = self.labels.clone()
            labels[place] = other
            yield Arrangement(labels, self.order)

    def exchanged(self, steps: SimulatedSteps) -> Iterator[Arrangement]:
        """All that differ by an exchange of two places in an epoch; in the first, of two labels."""
        for number, epoch in enumerate(steps.epochs):
            for pair in combinations(range(epoch.start, epoch.stop), 2):
                swapped = [*pair][::-1]
                if number:
                    order = self.order.clone()
                    order[[*pair]] = self.order[swapped]
                    yield Arrangement(self.labels, order)
                else:
                    labels = self.labels.clone()
                    labels[[*pair]] = self.labels[swapped]
                    yield Arrangement(labels, self.order)


def likely_arrangements(
    steps: SimulatedSteps,
    labels: Tensor,
    image: Tensor,
    observed: Tensors,
    rng: torch.Generator,
    expired: Callable[[], bool],
    classes: int = 0,
) -> list[Arrangement]:
    """Arrangements tried, those first whose steps on one and the same image are nearest.

    A step on a class lowers the loss of that class in all later ones, so that even steps on the
    mean image tell most orders apart. From random arrangements the nearest neighbour by an exchange
    is followed while there is a nearer one; where labels are not granted, by another label, too,
    as counts that are read from one gradient fail where steps move the weights far.

    Args:
        steps: of the client.
        labels: of its examples in any order, int64 ``(example,)``.
        image: stands for each of them, ``(channel, height, width)``.
        observed: change of the weights.
        rng: draws the arrangements that are started from.
        expired: whether to end.
        classes: of which each label may be another; 0 if the labels are granted.
    """
    images = image.expand(len(labels), *image.shape)
    seen: dict[tuple[tuple[int, ...], ...], tuple[float, Arrangement]] = {}

    def distance(arrangement: Arrangement) -> float:
        key = steps.labels_of(arrangement.labels, arrangement.order)
        if key not in seen:
            batch = Batch(images, arrangement.labels)
            update = steps.update(batch, arrangement.order, differentiable=False)
            seen[key] = float(cosine_distance(update, observed)), arrangement
        return seen[key][0]

    for _ in range(_CLIMBS):
        current = _drawn(steps, labels, rng)
        while True:
            nearest = min([current, *current.neighbours(steps, classes)], key=distance)
            if nearest is current or expired():
                break
            current = nearest
    return [arrangement for _, arrangement in sorted(seen.values(), key=lambda pair: pair[0])]


def _drawn(steps: SimulatedSteps, labels: Tensor, rng: torch.Generator) -> Arrangement:
    def shuffled(size: int) -> Tensor:
        return torch.randperm(len(labels), generator=rng)[:size]

    first, *others = steps.epochs
    order = [torch.arange(first.stop), *(shuffled(e.stop - e.start) for e in others)]
    return Arrangement(labels[shuffled(len(labels)).to(labels.device)], torch.cat(order))
