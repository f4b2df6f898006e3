"""The searches of Inverting Gradients, GI-GIP and Bayes for images whose gradient fits."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal, TypeAlias

import torch
from pydantic import Field
from torch import Tensor

from attacks.base import Attack, Grouping, Job, Reconstruction, Trace
from attacks.images.batch_statistics import StatisticsLoss, observed_statistics
from attacks.images.evidence import guarded, pixel_prior
from attacks.images.image_losses import ImageLoss, matching_loss
from attacks.images.over_rounds import over_rounds
from attacks.images.small_convolutions import suited_convolutions
from attacks.images.victims import Victims
from attacks.observed.labels import known_labels
from attacks.observed.replay import replay
from attacks.observed.search import Best, SearchProgress, slopes
from fedsim.capture import Observation
from fedsim.knowledge import Fact
from fedsim.tasks.base import Task
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
        expired: whether the time budget ended the search.
    """

    images: Tensor
    matching: Tensor
    others: tuple[Tensor, ...]
    steps: int
    traces: tuple[Trace, ...]
    expired: bool


@dataclass(frozen=True)
class ImageMatching(Attack, ABC):
    """Searches images, or what a generator makes them of, whose gradient fits the update.

    Attributes:
        restarts: searches of one victim, of which the best counts.
        lanes: restarts and victims searched at once; bounds the memory.
        adaptive: use the loss that fits the declared defense.
        over_rounds: match all rounds so far in which the client held the same rows, see
            ``attacks.images.over_rounds``.
    """

    requires: ClassVar[frozenset[Fact]] = frozenset({"num_examples"})
    modalities: ClassVar[frozenset[Literal["image", "text"]]] = frozenset({"image"})
    grouping: ClassVar[Grouping] = "same_weights"

    restarts: Annotated[int, Field(ge=1)] = 1
    lanes: Annotated[int, Field(ge=1)] = 32
    adaptive: bool = False
    over_rounds: bool = False

    @property
    def grouped_by(self) -> Grouping:
        """A client's observations, or those of one broadcast model, which share their lanes."""
        return "same_client" if self.over_rounds else self.grouping

    @abstractmethod
    def search(self, victims: Victims, task: Task) -> list[Reconstruction]:
        """One guess for each of the victims."""

    def reconstruct(
        self,
        observations: Sequence[Observation],
        task: Task,
        rngs: Sequence[torch.Generator],
        job: Job,
    ) -> list[Reconstruction]:
        """One guess for each observation; those of equal shape share their lanes."""
        if self.over_rounds:

            def read(index: int) -> Victims:
                return self._victims([observations[index]], task, [rngs[index]], job)

            def search(seen: Victims) -> Reconstruction:
                return self._likeliest(seen, task)[0]

            return over_rounds(observations, read, search, task, job)
        alike: defaultdict[tuple[object, ...], list[int]] = defaultdict(list)
        for index, observation in enumerate(observations):
            facts = observation.knowledge
            names = tuple(observation.received)
            key = (
                facts.num_examples,
                facts.auxiliary,
                facts.train_mode,
                repr(facts.defense),
                names,
            )
            alike[key].append(index)
        guesses: dict[int, Reconstruction] = {}
        for members in alike.values():
            group = [observations[i] for i in members]
            victims = self._victims(group, task, [rngs[i] for i in members], job)
            guesses |= zip(members, self._likeliest(victims, task), strict=True)
        return [guesses[index] for index in range(len(observations))]

    def _likeliest(self, victims: Victims, task: Task) -> list[Reconstruction]:
        """What the search found, or what the prior of images makes likelier of it."""
        found, evidence = self.search(victims, task), victims.evidence
        if evidence is None:
            return found
        return [
            guarded(
                guess,
                victims.prior,
                evidence,
                {name: value[victim] for name, value in victims.observed.items()},
            )
            for victim, guess in enumerate(found)
        ]

    def _victims(
        self,
        observations: Sequence[Observation],
        task: Task,
        rngs: Sequence[torch.Generator],
        job: Job,
    ) -> Victims:
        model = replay(observations[0], task, job.device)
        pairs = zip(observations, rngs, strict=True)
        labels = torch.stack(
            [known_labels(seen, task, rng, job, adaptive=self.adaptive) for seen, rng in pairs]
        )
        updates = [seen.update(model.parameters) for seen in observations]
        observed = {
            name: torch.stack([update[name] for update in updates]).float().to(job.device)
            for name in model.parameters
        }
        loss = matching_loss(model, observations[0], adaptive=self.adaptive)
        prior = pixel_prior(observations[0], task, job)
        return Victims(loss, labels.to(job.device), observed, prior, rngs, job)


@dataclass(frozen=True)
class RegularisedMatching(ImageMatching, ABC):
    """Minimises the distance of gradients with a weight for each regulariser.

    Attributes:
        total_variation: weight of TV, see ``attacks.images.image_losses``.
        batch_statistics: weight of the distance of the batch statistics, see
            ``attacks.images.batch_statistics``; it is part of the matching loss.
    """

    total_variation: Annotated[float, Field(ge=0)] = 3e-3
    batch_statistics: Annotated[float, Field(ge=0)] = 0.0

    def _victims(
        self,
        observations: Sequence[Observation],
        task: Task,
        rngs: Sequence[torch.Generator],
        job: Job,
    ) -> Victims:
        seen = super()._victims(observations, task, rngs, job)
        if not self.batch_statistics:
            return seen
        assert isinstance(seen.loss, ImageLoss)
        found = [observed_statistics(one, seen.loss.network) for one in observations]
        statistics = {
            name: torch.stack([own[name] for own in found]).to(job.device) for name in found[0]
        }
        return replace(
            seen,
            loss=StatisticsLoss(seen.loss, self.batch_statistics),
            observed=seen.observed | statistics,
        )


def best_restarts(
    victims: Victims,
    starts: Sequence[tuple[int, Tensor]],
    objective: ImageObjective,
    render: Callable[[Tensor], Tensor],
    attack: ImageMatching,
    *,
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
        attack: whose lanes and restarts are meant.
        steps: of Adam.
        learning_rate: as in ``descend``.
        pixels: as in ``descend``.
    """
    made: list[tuple[float, Reconstruction]] = []
    for first in range(0, len(starts), attack.lanes):
        own, values = zip(*starts[first : first + attack.lanes], strict=True)
        start = torch.stack(values).to(victims.job.device)
        with suited_convolutions(victims.loss.network, render(start.flatten(0, 1))):
            found = descend(
                objective,
                {"start": start},
                victims.lanes(own),
                victims.job,
                steps=steps,
                learning_rate=learning_rate,
                pixels=pixels,
            )
        ranks = (found.matching, *found.others)[-1].tolist()
        made += [
            (
                ranks[lane],
                Reconstruction(
                    Batch(found.images[lane], victims.labels[victim]),
                    objective=float(found.matching[lane]),
                    steps=found.steps,
                    trace=found.traces[lane],
                    expired=found.expired,
                ),
            )
            for lane, victim in enumerate(own)
        ]
    restarts = [made[i : i + attack.restarts] for i in range(0, len(made), attack.restarts)]
    return [min(one, key=lambda pair: pair[0])[1] for one in restarts]


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
        directions, (value, kept) = slope(variables, *lanes)
        best = best or Best(*kept)
        best.offer(value, *kept)
        expired = job.expired and step < steps
        ends = expired or step == steps
        if ends or step % NOTED == 0:
            progress.note(step, best.candidate[1])
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
