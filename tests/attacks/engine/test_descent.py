"""Best so far, restarts, stalls and traces."""

import math

import pytest
import torch

from attacks.base import Job
from attacks.engine.descent import (
    Best,
    SearchProgress,
    descend,
    restart_generators,
    slopes,
    stalled,
)
from fedsim.types import Tensors


def test_best_keeps_objective_and_candidate_of_each_lane_together() -> None:
    best = Best(torch.zeros(3, 2))
    for objectives, value in [([3.0, math.nan, 1.0], 1.0), ([2.0, 5.0, math.nan], 2.0)]:
        best.offer(torch.tensor(objectives), torch.full((3, 2), value))
    best.offer(torch.tensor([9.0, math.inf, 1.0]), torch.full((3, 2), 3.0))
    assert best.objective.tolist() == [2, 5, 1]
    assert best.candidate[0].tolist() == [[2, 2], [2, 2], [1, 1]]


def test_best_keeps_a_copy() -> None:
    point = torch.ones(1, 2)
    best = Best(torch.zeros(1, 2))
    best.offer(torch.tensor([1.0]), point)
    point.zero_()
    assert best.candidate[0].tolist() == [[1, 1]]


def test_restart_does_not_depend_on_the_others() -> None:
    def draws(restarts: int, used: int) -> list[float]:
        generators = restart_generators(torch.Generator().manual_seed(7), restarts)
        for generator in generators[:-1]:
            torch.rand(used, generator=generator)
        return [float(torch.rand(1, generator=generators[-1]))]

    assert draws(3, 0) == draws(3, 1000)
    first = [g.initial_seed() for g in restart_generators(torch.Generator().manual_seed(7), 3)]
    more = [g.initial_seed() for g in restart_generators(torch.Generator().manual_seed(7), 8)]
    assert more[:3] == first
    assert len(set(more)) == 8


@pytest.mark.parametrize(
    ("objectives", "expected"),
    [
        ([], False),
        ([1.0, 1.0], False),
        ([1.0, 1.0, 1.0], True),
        ([1.0, 0.8, 0.59], False),
        ([1.0, 0.8, 0.61], True),
        ([1.0, math.nan], True),
        ([math.inf], True),
    ],
)
def test_stalled(objectives: list[float], expected: bool) -> None:
    assert stalled(objectives, patience=2, factor=0.6) is expected


def test_progress() -> None:
    seen: list[tuple[int, float]] = []
    job = Job(report=lambda step, objective, text: seen.append((step, objective)))
    progress = SearchProgress(job)
    progress.note(1, torch.tensor([4.0, 2.0]))
    progress.note(2, torch.tensor([3.0, 1.0]))
    assert seen == [(1, 3.0), (2, 2.0)]
    assert [(step, objective) for step, _, objective in progress.trace(1)] == [(1, 2.0), (2, 1.0)]
    seconds = [second for _, second, _ in progress.trace(1)]
    assert 0 <= seconds[0] <= seconds[1]


def test_slopes_of_a_lane_alone_are_those_together() -> None:
    calls: list[int] = []

    def objective(
        variables: Tensors, scale: torch.Tensor, fixed: Tensors
    ) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
        calls.append(variables["x"].dim())
        value = scale * (variables["x"] ** 3).sum() + fixed["y"].sum()
        return value, (variables["x"], value)

    start = {"x": torch.tensor([[1.0, 2.0], [3.0, 4.0]]), "z": torch.ones(2, 1)}
    scale, fixed = torch.tensor([1.0, 2.0]), {"y": torch.tensor([[5.0], [6.0]])}
    slope, (value, others) = slopes(objective)(start, scale, fixed)
    assert slope["x"].tolist() == [[3, 12], [54, 96]]
    assert slope["z"].tolist() == [[0], [0]]
    assert value.tolist() == others[1].tolist() == [14, 188]
    with torch.no_grad():
        alone = slopes(objective)(
            {name: one[1:] for name, one in start.items()}, scale[1:], {"y": fixed["y"][1:]}
        )
    assert alone[0]["x"].tolist() == [[54, 96]]
    assert alone[0]["z"].tolist() == [[0]]
    assert [alone[1][0].tolist(), *(one.tolist() for one in alone[1][1])] == [
        [188],
        [[3, 4]],
        [188],
    ]
    assert not any(one.requires_grad for one in (alone[1][0], *alone[1][1]))
    assert calls == [1, 1]


@pytest.mark.parametrize(("deadline", "steps"), [(math.inf, 40), (0.0, 0)])
def test_a_descent_gives_the_best_of_each_lane_until_its_time_is_up(
    deadline: float, steps: int
) -> None:
    def objective(
        variables: Tensors, goal: torch.Tensor
    ) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
        value = (variables["x"] - goal).square().sum()
        return value, (variables["x"], value)

    start, goals = torch.tensor([[0.0], [4.0]]), torch.tensor([[1.0], [2.0]])
    job = Job(deadline=deadline)
    best = descend(objective, {"x": start.clone()}, (goals,), job, steps=40, learning_rate=0.3)
    assert (best.steps, best.expired) == (steps, steps == 0)
    reached = (best.guesses - goals).square().sum(1)
    torch.testing.assert_close(best.objective, reached)
    assert (reached < 0.2).all() if steps else torch.equal(best.guesses, start)
