"""Restarts, best candidate and trace, shared by all optimisation attacks."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.func import vmap

from attacks.base import Job, Trace
from fedsim.types import Tensors


def restart_generators(rng: torch.Generator, restarts: int) -> list[torch.Generator]:
    """One generator per restart; restart ``k`` draws the same whatever the others did."""
    seeds = torch.randint(2**62, (restarts,), generator=rng)
    return [torch.Generator().manual_seed(int(seed)) for seed in seeds]


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
    objective: Callable[..., tuple[Tensor, tuple[Tensor, ...]]],
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
