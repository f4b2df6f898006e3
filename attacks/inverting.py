"""Inverting Gradients (Geiping et al. 2020): cosine distance, total variation, signed Adam."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, TypeAlias

import torch
from pydantic import Field
from torch import Tensor
from torch.func import grad_and_value, vmap

from attacks.adaptive import declared
from attacks.base import Attack, Grouping, Job, Reconstruction
from attacks.distance import cosine_distance
from attacks.labels import known_labels
from attacks.replay import Replay, replay
from attacks.search import Best, Progress, restart_generators
from fedsim.capture import Observation
from fedsim.defenses.chain import Chain
from fedsim.knowledge import Fact
from fedsim.tasks.base import Task
from fedsim.types import Batch, Tensors

NOTED = 100
"""Steps between two entries of the trace: reading an objective waits for the GPU."""

Slope: TypeAlias = Callable[[Tensor, Tensor, Tensors], tuple[Tensor, tuple[Tensor, Tensor]]]
"""(images, labels, observed) by lane -> slope in the images, (objective, its part without TV)."""


@dataclass(frozen=True)
class Inverting(Attack):
    """``1 - cosine + total_variation * TV(x)`` on pixels in [0, 1], by Adam on the slope's sign.

    Geiping et al. 2020: step size times 0.1 at 3/8, 5/8 and 7/8 of the steps, projection to the
    box after each step, the restart with the lowest matching loss (without TV) wins. We differ:
    pixels are not normalised by a data set's mean and deviation, the best iterate is kept and not
    the last, labels are inferred where they are not granted, and restarts and victims are lanes of
    one ``vmap``. A FedAvg update is matched as if it were a gradient, which the cosine allows.

    Attributes:
        steps: of Adam.
        total_variation: weight of TV, which is defined below.
        learning_rate: of Adam at the start, in pixels.
        lanes: restarts and victims searched at once; bounds the memory.
        adaptive: apply the declared defense's surrogate to the guess's gradient.
    """

    requires: ClassVar[frozenset[Fact]] = frozenset({"num_examples"})
    modalities: ClassVar[frozenset[Literal["image", "text"]]] = frozenset({"image"})
    grouping: ClassVar[Grouping] = "same_weights"

    steps: Annotated[int, Field(ge=1)] = 4800
    total_variation: Annotated[float, Field(ge=0)] = 3e-3
    learning_rate: Annotated[float, Field(gt=0)] = 0.1
    restarts: Annotated[int, Field(ge=1)] = 1
    lanes: Annotated[int, Field(ge=1)] = 32
    adaptive: bool = False

    def reconstruct(
        self,
        observations: Sequence[Observation],
        task: Task,
        rngs: Sequence[torch.Generator],
        job: Job,
        prepared: Tensors | None = None,
    ) -> list[Reconstruction]:
        """One guess for each observation; those of equal shape share their lanes."""
        del prepared
        alike: defaultdict[tuple[object, ...], list[int]] = defaultdict(list)
        for index, observation in enumerate(observations):
            facts = observation.knowledge
            names = tuple(observation.received)
            key = (facts.num_examples, facts.train_mode, repr(facts.defense), names)
            alike[key].append(index)
        guesses: dict[int, Reconstruction] = {}
        for members in alike.values():
            group = [observations[i] for i in members]
            made = self._together(group, task, [rngs[i] for i in members], job)
            guesses |= zip(members, made, strict=True)
        return [guesses[index] for index in range(len(observations))]

    def _together(
        self,
        observations: Sequence[Observation],
        task: Task,
        rngs: Sequence[torch.Generator],
        job: Job,
    ) -> list[Reconstruction]:
        """Guesses of one shape; a lane is one restart of one victim."""
        model = replay(observations[0], task, job.device)
        slope = self._slope(model, observations[0])
        labels = [
            known_labels(o, task, rng, job) for o, rng in zip(observations, rngs, strict=True)
        ]
        updates = [observation.update() for observation in observations]
        # Grey of mean .5 and deviation .25: N(0, 1) in the normalised pixels of the paper.
        lanes = [
            (0.5 + 0.25 * torch.randn(len(own), *task.spec.input_shape, generator=generator), i)
            for i, (own, rng) in enumerate(zip(labels, rngs, strict=True))
            for generator in restart_generators(rng, self.restarts)
        ]
        made: list[Reconstruction] = []
        for first in range(0, len(lanes), self.lanes):
            starts, victims = zip(*lanes[first : first + self.lanes], strict=True)
            observed = {
                name: torch.stack([updates[i][name] for i in victims]).float().to(job.device)
                for name in model.parameters
            }
            classes = torch.stack([labels[i] for i in victims]).to(job.device)
            made += self._descend(torch.stack(starts).to(job.device), classes, observed, slope, job)
        restarts = [made[i : i + self.restarts] for i in range(0, len(made), self.restarts)]
        return [min(own, key=_objective) for own in restarts]

    def _slope(self, model: Replay, observation: Observation) -> Slope:
        chain = declared(observation) if self.adaptive else Chain()

        def objective(images: Tensor, labels: Tensor, observed: Tensors) -> tuple[Tensor, Tensor]:
            gradient = chain.surrogate(model.pure_gradient(Batch(images, labels)))
            matching = cosine_distance(gradient, observed)
            return matching + self.total_variation * total_variation(images), matching

        slope: Slope = vmap(grad_and_value(objective, has_aux=True))
        return slope

    def _descend(
        self, images: Tensor, labels: Tensor, observed: Tensors, slope: Slope, job: Job
    ) -> list[Reconstruction]:
        """Signed Adam on all lanes; one reconstruction a lane, with its matching loss."""
        images = images.clamp(0, 1)
        optimizer = torch.optim.Adam([images], lr=self.learning_rate)
        milestones = [self.steps * eighths // 8 for eighths in (3, 5, 7)]
        schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones, gamma=0.1)
        progress = Progress(job)
        best = Best(images, torch.full_like(images[:, 0, 0, 0, 0], torch.inf))
        for step in range(self.steps + 1):
            direction, (objective, matching) = slope(images, labels, observed)
            best.offer(objective, images, matching)
            expired = job.expired and step < self.steps
            ends = expired or step == self.steps
            if ends or step % NOTED == 0:
                progress.note(step, best.candidate[1])
            if ends:
                break
            images.grad = direction.sign()
            optimizer.step()
            schedule.step()
            images.clamp_(0, 1)
        guesses, losses = best.candidate
        return [
            Reconstruction(
                Batch(guesses[lane], labels[lane]),
                objective=float(losses[lane]),
                steps=step,
                trace=progress.trace(lane),
                expired=expired,
            )
            for lane in range(len(guesses))
        ]


def total_variation(images: Tensor) -> Tensor:
    """Mean over pixels of the absolute differences to the right and lower neighbour.

    A border pixel's neighbour outside the image is itself.
    """
    right = (images[..., :, 1:] - images[..., :, :-1]).abs().sum()
    lower = (images[..., 1:, :] - images[..., :-1, :]).abs().sum()
    return (right + lower) / images.numel()


def _objective(lane: Reconstruction) -> float:
    assert lane.objective is not None
    return lane.objective
