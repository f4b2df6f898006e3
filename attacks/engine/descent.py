"""Descent: slopes in lanes, restarts, the best iterate, the trace, Adam and L-BFGS."""

import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor
from torch.func import vmap

from attacks.base import Job, Reconstruction, Trace
from fedsim.types import Batch, Tensors

_CURVED = 1e-10  # of a pair of changes that the history keeps
NOTED = 100
"""Steps between two entries of the trace: reading an objective waits for the GPU."""

Objective: TypeAlias = Callable[..., tuple[Tensor, tuple[Tensor, ...]]]
"""(variables, what is fixed...) of one lane -> what is minimised, (guess, what it is compared by,
what else is wanted of the best iterate)."""


def restart_generators(rng: torch.Generator, restarts: int) -> list[torch.Generator]:
    """One generator per restart; restart ``k`` draws the same whatever the others did."""
    seeds = torch.randint(2**62, (restarts,), generator=rng)
    return [torch.Generator().manual_seed(int(seed)) for seed in seeds]


def drawn(
    rngs: Sequence[torch.Generator], restarts: int, draw: Callable[[torch.Generator], Tensor]
) -> list[tuple[int, Tensor]]:
    """Each victim's number with what is drawn for a restart, those of one beside each other."""
    generators = [restart_generators(rng, restarts) for rng in rngs]
    return [(victim, draw(rng)) for victim, of in enumerate(generators) for rng in of]


def stalled(objectives: Sequence[float], patience: int, factor: float) -> bool:
    """Whether the lowest objective has not fallen to ``factor`` of itself in ``patience`` steps.

    Also true once an objective is NaN or infinite: the search will not come back.
    """
    if not objectives:
        return False
    if not math.isfinite(objectives[-1]):
        return True
    if len(objectives) <= patience:
        return False
    return min(objectives) > factor * min(objectives[:-patience])


def slopes(
    objective: Objective,
) -> Callable[..., tuple[Tensors, tuple[Tensor, tuple[Tensor, ...]]]]:
    """The slope, the value and what else it gives of an objective in each lane.

    Lanes share a ``vmap``, and the last derivative is by plain autograd, which takes less time than
    ``torch.func.grad``. One lane alone goes without either, in less than half the time.

    Args:
        objective: of one lane, (variables, what is fixed...) -> (value, others).
    """
    together = vmap(objective)

    def of(
        variables: Tensors, *fixed: Tensor | Tensors
    ) -> tuple[Tensors, tuple[Tensor, tuple[Tensor, ...]]]:
        leaves = {name: value.detach().requires_grad_() for name, value in variables.items()}
        with torch.enable_grad():
            if all(len(variable) == 1 for variable in leaves.values()):
                value, others = objective(_only(leaves), *map(_only, fixed))
                value, others = value[None], tuple(other[None] for other in others)
            else:
                value, others = together(leaves, *fixed)
            gradients = torch.autograd.grad(
                value.sum(), list(leaves.values()), materialize_grads=True
            )
        slope = dict(zip(leaves, gradients, strict=True))
        return slope, (value.detach(), tuple(other.detach() for other in others))

    return of


def _only(lanes: Tensor | Tensors) -> Tensor | Tensors:
    return lanes[0] if isinstance(lanes, Tensor) else {name: v[0] for name, v in lanes.items()}


class Best:
    """The best candidate of each lane by the attacker's own objective.

    Attributes:
        objective: lowest so far ``(lane,)``; infinite until a finite one was offered.
        candidate: the tensors with that objective, each ``(lane, ...)``.
    """

    def __init__(self, *start: Tensor) -> None:
        self.objective = torch.full_like(start[0].detach().flatten(1)[:, 0], torch.inf)
        self.candidate = tuple(tensor.detach().clone() for tensor in start)

    def offer(self, objective: Tensor, *candidate: Tensor) -> None:
        """Keep ``candidate`` in the lanes where ``objective``, taken at it, is a new lowest.

        No host synchronisation; NaN never wins.
        """
        better = objective < self.objective
        self.objective = torch.where(better, objective, self.objective).detach()
        self.candidate = tuple(
            torch.where(better.view(-1, *[1] * (new.dim() - 1)), new.detach(), old)
            for new, old in zip(candidate, self.candidate, strict=True)
        )


class SearchProgress:
    """Reports to the job and keeps the trace of each victim."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._start = time.monotonic()
        self._rows: list[tuple[int, float, list[float]]] = []

    def note(self, step: int, objectives: Tensor, guess: str | Tensor = "") -> None:
        """Note the objective of each victim, ``(victim,)``; report their mean and one guess."""
        values = objectives.tolist()
        self._rows.append((step, time.monotonic() - self._start, values))
        self._job.report(step, sum(values) / len(values), guess)

    def trace(self, victim: int = 0) -> Trace:
        """(step, seconds, objective) of one victim."""
        return tuple((step, seconds, values[victim]) for step, seconds, values in self._rows)


@dataclass(frozen=True)
class BestIterates:
    """The best iterate of each lane.

    Attributes:
        guesses: ``(lane, ...)``.
        objective: what each is compared by, as without a regulariser, ``(lane,)``.
        others: what else the objective gave, ``(lane, ...)``.
        steps: taken.
        traces: of each lane.
        expired: whether the clock ended the search.
    """

    guesses: Tensor
    objective: Tensor
    others: tuple[Tensor, ...]
    steps: int
    traces: tuple[Trace, ...]
    expired: bool

    def reconstruction(self, lane: int, labels: Tensor) -> Reconstruction:
        """A lane's guess, with the labels ``(example,)`` that it was searched with."""
        return Reconstruction(
            Batch(self.guesses[lane], labels),
            objective=float(self.objective[lane]),
            steps=self.steps,
            trace=self.traces[lane],
            expired=self.expired,
        )


def descend(
    objective: Objective,
    variables: Tensors,
    lanes: tuple[Tensor | Tensors, ...],
    job: Job,
    *,
    steps: int,
    learning_rate: float,
    pixels: bool = False,
) -> BestIterates:
    """Adam on all lanes at once, its rate times 0.1 at 3/8, 5/8 and 7/8 of the steps.

    Args:
        objective: of one lane.
        variables: where each lane starts, ``(lane, ...)``; they are moved in place.
        lanes: labels, gradients and what else is fixed of each lane.
        job: device and deadline.
        steps: of Adam.
        learning_rate: at the start.
        pixels: the variables are pixels, as in Inverting Gradients: Adam follows the slope's sign,
            and each step is projected to [0, 1].
    """
    slope = slopes(objective)
    optimizer = torch.optim.Adam(list(variables.values()), lr=learning_rate)
    milestones = [steps * eighths // 8 for eighths in (3, 5, 7)]
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones, gamma=0.1)
    progress, best = SearchProgress(job), None
    for step in range(steps + 1):
        directions, (value, candidate) = slope(variables, *lanes)
        best = best or Best(*candidate)
        best.offer(value, *candidate)
        expired = step < steps and job.expired
        ends = expired or step == steps
        if ends or step % NOTED == 0:
            guesses, compared = best.candidate[:2]
            progress.note(step, compared, guesses[compared.argmin()])
        if ends:
            break
        for name, variable in variables.items():
            variable.grad = directions[name].sign() if pixels else directions[name]
        optimizer.step()
        schedule.step()
        if pixels:
            for variable in variables.values():
                variable.clamp_(0, 1)
    assert best is not None
    guesses, compared, *others = best.candidate
    traces = tuple(progress.trace(lane) for lane in range(len(compared)))
    return BestIterates(guesses, compared, tuple(others), step, traces, expired)


class LBFGS:
    """L-BFGS without line search (Nocedal 1980), step for step that of ``torch.optim``.

    That one reads five numbers in each iteration, and two more for each pair of its history; on a
    GPU the CPU waits for each. This one reads once a step. Until then a pair that does not belong
    into the history counts as nothing, and where a direction leads uphill the point stays.

    Args:
        variables: moved in place.
        objective: its value and its slopes in the variables, at where they are.
        iterations: in each step.
        history: pairs of changes kept.
    """

    def __init__(
        self,
        variables: Sequence[Tensor],
        objective: Callable[[], tuple[Tensor, Sequence[Tensor]]],
        iterations: int,
        history: int,
    ) -> None:
        self._variables, self._objective = variables, objective
        self._iterations, self._history = iterations, history
        self._pairs: list[tuple[Tensor, Tensor]] = []
        self._inverses = variables[0].new_zeros(0)  # of their products; 0 for a pair not kept
        self._before: tuple[Tensor, Tensor] | None = None
        self._scale: Tensor | float = 1.0
        self._stuck = False

    def step(self) -> Tensor:
        """All iterations of a step; the objective before them."""
        first, slope = self._evaluated()
        if self._stuck:
            return first
        for iteration in range(self._iterations):
            if iteration:
                _, slope = self._evaluated()
            change, uphill = self._change(slope)
            self._before = slope, change
            self._move(change)
        flags = torch.cat([self._inverses != 0, uphill[None]])
        *moving, self._stuck = flags.tolist()
        if not all(moving):
            places = [place for place, moves in enumerate(moving) if moves]
            self._pairs = [self._pairs[place] for place in places]
            self._inverses = self._inverses[places]
        return first

    def _evaluated(self) -> tuple[Tensor, Tensor]:
        value, slopes = self._objective()
        return value, torch.cat([slope.flatten() for slope in slopes])

    def _change(self, slope: Tensor) -> tuple[Tensor, Tensor]:
        """What to add to the variables, and whether it would lead uphill."""
        if self._before is None:
            direction = -slope * (1 / slope.abs().sum()).clamp(max=1)
        else:
            self._remember(slope, *self._before)
            direction = self._direction(slope)
        uphill = slope.dot(direction) > 0
        return torch.where(uphill, 0, direction), uphill

    def _direction(self, slope: Tensor) -> Tensor:
        """The inverse Hessian that the history tells of, times the slope, by two loops."""
        direction, shares = -slope, deque[Tensor]()
        inverses = self._inverses.unbind()
        for (turned, moved), inverse in zip(reversed(self._pairs), reversed(inverses), strict=True):
            shares.appendleft(moved.dot(direction) * inverse)
            direction.addcmul_(turned, shares[0], value=-1)
        direction *= self._scale
        for (turned, moved), inverse, share in zip(self._pairs, inverses, shares, strict=True):
            direction.addcmul_(moved, share - turned.dot(direction) * inverse)
        return direction

    def _remember(self, slope: Tensor, before: Tensor, moved: Tensor) -> None:
        turned = slope - before
        along = turned.dot(moved)
        curved = along > _CURVED
        self._pairs.append((turned, moved))
        inverses = torch.cat([self._inverses, torch.where(curved, 1 / along, 0)[None]])
        newer = (inverses != 0).flip(0).cumsum(0).flip(0)
        self._inverses = torch.where(newer <= self._history, inverses, 0)
        self._scale = torch.where(curved, along / turned.dot(turned), self._scale)

    def _move(self, change: Tensor) -> None:
        sizes = [variable.numel() for variable in self._variables]
        for variable, part in zip(self._variables, change.split(sizes), strict=True):
            variable.data.add_(part.view_as(variable))
