"""The likeliest images of a client that took several local steps, which are taken again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import combinations, permutations, product

import torch
from torch import Tensor

from attacks.base import Job, Reconstruction
from attacks.engine.descent import Best, SearchProgress
from attacks.images.image_losses import surprise
from attacks.images.small_convolutions import suited_convolutions
from attacks.images.victims import Evidence, guarded
from attacks.observed.distance import cosine_distance
from attacks.observed.local_steps import SimulatedSteps
from attacks.observed.pixel_prior import PixelPrior
from fedsim.types import Batch, Tensors

_CHUNK = 20
"""Iterations between two looks at the clock."""
_SHORT = 10
"""Evaluations after which the worse half of the orders is given up; the better half gets twice as
many more, and so on. With so many each time one client of three lost 4 dB to a near tie."""
_HISTORY = 50  # pairs of steps that L-BFGS remembers


@dataclass(frozen=True)
class UnrolledSearch:
    """Maximises the posterior probability of images whose steps make the update.

    Orders are first compared on the mean image. The likeliest are searched with, the better half of
    them goes on, and the best to the end. L-BFGS searches the coefficients of the prior; in as many
    evaluations Adam comes less near.

    Attributes:
        steps: of the client.
        observed: change of the weights, on the model's device.
        prior: of images, in float32.
        job: its clock, device and progress.
        evaluations: of the posterior and its slope, at most, of the best order.
        orders: that are searched with at first.
        classes: of which each label may be another; 0 if the labels are granted.
    """

    steps: SimulatedSteps
    observed: Tensors
    prior: PixelPrior
    job: Job
    evaluations: int
    orders: int
    classes: int

    def __call__(self, labels: Tensor, start: Tensor, rng: torch.Generator) -> Reconstruction:
        """The guess.

        Args:
            labels: of the client's examples in any order, or guesses, int64 ``(example,)``.
            start: coefficients ``(example, coefficient)``.
            rng: draws the orders that are compared.
        """
        model = self.steps.model
        mean = self.prior.mean.clamp(0, 1)
        first = labels[: self.steps.sizes[0]]
        step = Batch(mean.expand(len(first), *mean.shape), first)
        progress = SearchProgress(self.job)
        with suited_convolutions(model.network, lambda: model.task.loss(model.network, step)):
            tried = likely_arrangements(
                self.steps,
                labels,
                mean,
                self.observed,
                rng,
                lambda: self.job.expired,
                self.classes,
            )
            searches = [
                _Search(self, arrangement, start, progress) for arrangement in tried[: self.orders]
            ]
            rest, more = searches, _SHORT
            while len(rest) > 1:
                for search in rest:
                    search.run(more)
                more *= 2
                rest = sorted(rest, key=lambda search: float(search.best.objective))[
                    : len(rest) // 2
                ]
            best = rest[0]
            best.run(self.evaluations)
        images, distance = (tensor[0] for tensor in best.best.candidate)
        reconstruction = Reconstruction(
            Batch(images, best.arrangement.labels),
            objective=float(distance),
            steps=sum(search.done for search in searches),
            trace=progress.trace(),
            expired=best.expired,
        )
        return guarded(
            reconstruction, self.prior, self.evidence(best.arrangement.order), self.observed
        )

    def evidence(self, order: Tensor) -> Evidence:
        """How likely images are whose steps are taken in this order, int64 ``(place,)``."""

        def likely(images: Tensor, labels: Tensor, observed: Tensors) -> tuple[Tensor, Tensor]:
            distance = cosine_distance(self.steps.update(Batch(images, labels), order), observed)
            return distance, surprise(distance, observed)

        return likely


class _Search:
    """L-BFGS with one arrangement.

    Attributes:
        best: images and distance with the lowest objective so far.
        done: evaluations.
        expired: whether the clock ended it.
    """

    def __init__(
        self,
        search: UnrolledSearch,
        arrangement: Arrangement,
        start: Tensor,
        progress: SearchProgress,
    ) -> None:
        self.arrangement, self._of, self._progress = arrangement, search, progress
        self._evidence = search.evidence(arrangement.order)
        self._coefficients = start.clone().requires_grad_()
        self._optimizer = torch.optim.LBFGS(
            [self._coefficients],
            max_iter=_CHUNK,
            history_size=_HISTORY,
            tolerance_grad=0,
            tolerance_change=0,
            line_search_fn="strong_wolfe",
        )
        self.best = Best(self._images()[None], torch.full((1,), torch.inf).to(start))
        self.done, self.expired = 0, False

    def run(self, evaluations: int) -> None:
        """Go on for so many evaluations, a few more at the end of a line search."""
        end = self.done + evaluations
        while self.done < end and not self.expired:
            before = self.done
            self._optimizer.param_groups[0]["max_eval"] = min(2 * _CHUNK, end - before)
            self._optimizer.step(self._objective)
            self._progress.note(self.done, self.best.candidate[1], self.best.candidate[0][0])
            self.expired = self._of.job.expired
            if self.done - before <= 1:
                break  # no direction leads down

    def _images(self) -> Tensor:
        return self._of.prior.images(self._coefficients).clamp(0, 1)

    @torch.enable_grad()
    def _objective(self) -> Tensor:
        self.done += 1
        images = self._images()
        distance, unlikely = self._evidence(images, self.arrangement.labels, self._of.observed)
        value = unlikely + self._coefficients.square().sum() / 2
        (self._coefficients.grad,) = torch.autograd.grad(value, [self._coefficients])
        self.best.offer(value.detach()[None], images[None], distance[None])
        return value


_CLIMBS = 8
"""Random arrangements from which nearer neighbours are followed."""


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
        """All that differ by an exchange, in when one place is taken, or in one label."""
        yield from self.exchanged(steps)
        yield from self.moved(steps)
        for place, other in product(range(len(self.labels)), range(classes)):
            labels = self.labels.clone()
            labels[place] = other
            yield Arrangement(labels, self.order)

    def exchanged(self, steps: SimulatedSteps) -> Iterator[Arrangement]:
        """All that differ by an exchange of two places in an epoch; in the first, of two labels."""
        for number, epoch in enumerate(steps.epochs):
            for pair in combinations(range(epoch.start, epoch.stop), 2):
                places = self._places
                places[pair[0]], places[pair[1]] = places[pair[1]], places[pair[0]]
                yield self._taken(places, first=not number)

    def moved(self, steps: SimulatedSteps) -> Iterator[Arrangement]:
        """All in which one place of an epoch is taken earlier or later, and those between close up.

        A step on an image of the class that the step before has raised hardly moves the weights, so
        that the order of all others is right but for a shift, which no exchange undoes.
        """
        for number, epoch in enumerate(steps.epochs):
            for start, end in permutations(range(epoch.start, epoch.stop), 2):
                places = self._places
                places.insert(end, places.pop(start))
                yield self._taken(places, first=not number)

    @property
    def _places(self) -> list[int]:
        return [*range(max(len(self.labels), len(self.order)))]

    def _taken(self, places: list[int], *, first: bool) -> Arrangement:
        """What stands at these places: of the first epoch the labels, of others the images."""
        if first:
            return Arrangement(self.labels[places[: len(self.labels)]], self.order)
        return Arrangement(self.labels, self.order[places[: len(self.order)]])


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
    mean image tell most orders apart. From random arrangements a nearer neighbour is followed,
    the first in random order, while there is one; where labels are not granted, one of another
    label, too, as counts that are read from one gradient fail where steps move the weights far.

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
        least = distance(current)
        while not expired():
            neighbours = [*current.neighbours(steps, classes)]
            drawn = torch.randperm(len(neighbours), generator=rng).tolist()
            nearer = (neighbours[n] for n in drawn if distance(neighbours[n]) < least)
            if (first := next(nearer, None)) is None:
                break
            current, least = first, distance(first)
    return [arrangement for _, arrangement in sorted(seen.values(), key=lambda pair: pair[0])]


def _drawn(steps: SimulatedSteps, labels: Tensor, rng: torch.Generator) -> Arrangement:
    def shuffled(size: int) -> Tensor:
        return torch.randperm(len(labels), generator=rng)[:size]

    first, *others = steps.epochs
    order = [torch.arange(first.stop), *(shuffled(e.stop - e.start) for e in others)]
    return Arrangement(labels[shuffled(len(labels)).to(labels.device)], torch.cat(order))
