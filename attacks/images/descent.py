"""Adam on images, or on what makes them, in lanes; and the best of several restarts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import torch
from torch import Tensor

from attacks.base import Job, Reconstruction, Trace
from attacks.images.small_convolutions import suited_convolutions
from attacks.images.victims import VictimGroup
from attacks.observed.search import Best, SearchProgress, slopes
from fedsim.types import Batch, Tensors

NOTED = 100
"""Steps between two entries of the trace: reading an objective waits for the GPU."""

ImageObjective: TypeAlias = Callable[..., tuple[Tensor, tuple[Tensor, ...]]]
"""(variables, labels, observed, what else is fixed) of one lane -> what is minimised, (images,
matching loss, what else is wanted of the best iterate)."""


@dataclass(frozen=True)
class BestIterates:
    """The best iterate of each lane.

    Attributes:
        images: ``(lane, example, channel, height, width)``.
        matching: their matching loss, without any regulariser, ``(lane,)``.
        others: what else the objective gave, ``(lane, ...)``.
        steps: taken.
        traces: of each lane.
        expired: whether the clock ended the search.
    """

    images: Tensor
    matching: Tensor
    others: tuple[Tensor, ...]
    steps: int
    traces: tuple[Trace, ...]
    expired: bool

    def reconstruction(self, lane: int, labels: Tensor) -> Reconstruction:
        """A lane's images, with the labels ``(example,)`` that it was searched with."""
        return Reconstruction(
            Batch(self.images[lane], labels),
            objective=float(self.matching[lane]),
            steps=self.steps,
            trace=self.traces[lane],
            expired=self.expired,
        )


def best_restarts(
    victims: VictimGroup,
    starts: Sequence[tuple[int, Tensor]],
    objective: ImageObjective,
    render: Callable[[Tensor], Tensor],
    *,
    restarts: int,
    lanes: int,
    steps: int,
    learning_rate: float,
    pixels: bool = False,
) -> list[Reconstruction]:
    """The best restart of each victim; a lane is one restart of one victim.

    Args:
        victims: to be searched for.
        starts: a victim and where the search of it starts, the restarts of one beside each other.
        objective: of the variable ``start``; the last value that it gives tells which is best.
        render: what a batch of starts looks like, ``(image, channel, height, width)``.
        restarts: of each victim.
        lanes: searched at once.
        steps: of Adam.
        learning_rate: as in ``descend``.
        pixels: as in ``descend``.
    """
    ranked: list[tuple[float, Reconstruction]] = []
    for first in range(0, len(starts), lanes):
        owners, values = zip(*starts[first : first + lanes], strict=True)
        start = torch.stack(values).to(victims.job.device)
        model, images = victims.loss.model, render(start.flatten(0, 1))
        batch = Batch(images, model.task.any_labels(len(images)).to(images.device))
        run = partial(model.task.loss, model.network, batch)
        with suited_convolutions(model.network, run):
            iterates = descend(
                objective,
                {"start": start},
                victims.lanes(owners),
                victims.job,
                steps=steps,
                learning_rate=learning_rate,
                pixels=pixels,
            )
        ranks = (iterates.matching, *iterates.others)[-1].tolist()
        ranked += [
            (ranks[lane], iterates.reconstruction(lane, victims.labels[victim]))
            for lane, victim in enumerate(owners)
        ]
    apart = [ranked[i : i + restarts] for i in range(0, len(ranked), restarts)]
    return [min(tries, key=lambda pair: pair[0])[1] for tries in apart]


def descend(
    objective: ImageObjective,
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
            images, matching = best.candidate[:2]
            progress.note(step, matching, images[matching.argmin()])
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
    images, matching, *others = best.candidate
    traces = tuple(progress.trace(lane) for lane in range(len(matching)))
    return BestIterates(images, matching, tuple(others), step, traces, expired)
