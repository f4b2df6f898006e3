"""Searches for images whose gradient fits: over rounds, and the best of several restarts."""

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from attacks.base import Attack, Grouping, Job, Reconstruction
from attacks.engine.descent import Objective, descend, drawn
from attacks.images.image_losses import matching_loss
from attacks.images.small_convolutions import suited_convolutions
from attacks.images.victims import RoundsLoss, VictimGroup, guarded, pixel_prior, unlikelihood
from attacks.observed.declared import recovered
from attacks.observed.known_labels import known_labels
from attacks.observed.labels import find_head, infer_label, round_counts
from attacks.observed.replay import replay
from attacks.observed.same_rows import round_by_round
from fedsim.defenses.base import Distortion
from fedsim.knowledge import Fact
from fedsim.store.capture import Observation
from fedsim.tasks.base import Task
from fedsim.types import Batch


@dataclass(frozen=True)
class ImageMatching(Attack, ABC):
    """Searches images, or what a generator makes them of, whose gradient fits the update.

    Attributes:
        restarts: searches of one victim, of which the best counts.
        lanes: restarts and victims searched at once; bounds the memory.
        adaptive: use the loss that fits the declared defense.
        over_rounds: match all rounds so far in which the client held the same rows, see
            ``attacks.images.image_matching``.
    """

    requires: ClassVar[frozenset[Fact]] = frozenset({"num_examples"})
    modalities: ClassVar[frozenset[Literal["image", "text"]]] = frozenset({"image"})
    grouping: ClassVar[Grouping] = "same_weights"
    uses: ClassVar[frozenset[Distortion] | None] = frozenset(
        {"scale", "noise", "sparsity", "sign", "rounding", "projection", "orthogonal"}
    )
    objective_unit: ClassVar[str] = "nats"

    restarts: Annotated[int, Field(ge=1)] = 1
    lanes: Annotated[int, Field(ge=1)] = 32
    adaptive: bool = False
    over_rounds: bool = False

    @property
    def grouped_by(self) -> Grouping:
        """A client's observations, or those of one broadcast model, which share their lanes."""
        return "same_client" if self.over_rounds else self.grouping

    @abstractmethod
    def search(self, victims: VictimGroup, task: Task) -> list[Reconstruction]:
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

            def read(index: int) -> VictimGroup:
                return self._victims([observations[index]], task, [rngs[index]], job)

            def search(seen: VictimGroup) -> Reconstruction:
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
            likeliest = self._likeliest(victims, task)
            if self.adaptive:
                network = victims.loss.model.network
                likeliest = [recovered(guess, group[0], network) for guess in likeliest]
            guesses |= zip(members, likeliest, strict=True)
        return [guesses[index] for index in range(len(observations))]

    def objectives(
        self,
        observation: Observation,
        task: Task,
        batches: Sequence[Batch],
        rng: torch.Generator,
        job: Job,
    ) -> list[float] | None:
        """``-log p(images | update)``, by which the last choice is made; of a single round."""
        if self.over_rounds:
            return None
        victims = self._victims([observation], task, [rng], job)
        observed = {name: value[0] for name, value in victims.observed.items()}
        return [
            unlikelihood(batch.to(job.device), victims.prior, victims.loss.evidence, observed)[0]
            for batch in batches
        ]

    def _likeliest(self, victims: VictimGroup, task: Task) -> list[Reconstruction]:
        """What the search found, or what the prior of images makes likelier of it."""
        return [
            guarded(
                guess,
                victims.prior,
                victims.loss.evidence,
                {name: value[victim] for name, value in victims.observed.items()},
            )
            for victim, guess in enumerate(self.search(victims, task))
        ]

    def _victims(
        self,
        observations: Sequence[Observation],
        task: Task,
        rngs: Sequence[torch.Generator],
        job: Job,
    ) -> VictimGroup:
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
        return VictimGroup(loss, labels.to(job.device), observed, prior, rngs, job)


def over_rounds(
    observations: Sequence[Observation],
    read: Callable[[int], VictimGroup],
    search: Callable[[VictimGroup], Reconstruction],
    task: Task,
    job: Job,
) -> list[Reconstruction]:
    """One guess for each of a client's observations, from all rounds up to it with the same rows.

    The search starts anew in each round, from that round's own generator: where the first round is
    mostly noise, what was found there is a bad place to go on from. R rounds take as many
    gradients as R (R + 1) / 2 of them alone.

    Args:
        observations: of one client.
        read: what ``search`` gets of the observation at this position.
        search: the guess of one victim.
        task: the model whose last layer tells the labels.
        job: its time budget; when that ends, later rounds keep the last guess.
    """
    read = cache(read)

    def guess(rounds: Sequence[int], before: Reconstruction | None) -> Reconstruction:
        del before
        seen = [read(position) for position in rounds]
        granted = observations[rounds[-1]].knowledge.labels is not None
        return search(joined(seen, seen[-1].labels if granted else common_labels(seen, task)))

    return round_by_round(observations, guess, job)


def joined(seen: Sequence[VictimGroup], labels: Tensor) -> VictimGroup:
    """The rounds of one client as one victim, with the last round's generator.

    Args:
        seen: one victim for each round.
        labels: the classes int64 ``(1, example)`` that all rounds agree on.
    """
    last = seen[-1]
    losses = tuple(victims.loss for victims in seen if not isinstance(victims.loss, RoundsLoss))
    observed = {name: torch.stack([v.observed[name] for v in seen], 1) for name in last.observed}
    return replace(last, loss=RoundsLoss(losses), labels=labels, observed=observed)


def common_labels(seen: Sequence[VictimGroup], task: Task) -> Tensor:
    """The classes int64 ``(1, example)`` that the rounds tell together.

    The gradient of the last layer is averaged over the rounds for a single example; the classes of
    several examples, which each round counts at its own weights, are averaged as counts.
    """
    labels = torch.cat([victims.labels for victims in seen])
    if len(seen) == 1:
        return labels
    if labels.shape[1] > 1:
        counts = torch.nn.functional.one_hot(labels.cpu()).sum(1).double().mean(0)
        return torch.repeat_interleave(round_counts(counts, labels.shape[1]))[None].to(labels)
    head = find_head(task.build())
    update = {
        name: torch.stack([victims.observed[name][0] for victims in seen]).mean(0)
        for name in (head.weight, head.bias)
        if name is not None and name in seen[-1].observed
    }
    return torch.tensor([[infer_label(update, head)]]).to(labels)


def best_restarts(
    victims: VictimGroup,
    draw: Callable[[torch.Generator], Tensor],
    objective: Objective,
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
        draw: where a search starts.
        objective: of the variable ``start``; the last value that it gives tells which is best.
        render: what a batch of starts looks like, ``(image, channel, height, width)``.
        restarts: of each victim.
        lanes: searched at once.
        steps: of Adam.
        learning_rate: as in ``descend``.
        pixels: as in ``descend``.
    """
    ranked, starts = list[tuple[float, Reconstruction]](), drawn(victims.rngs, restarts, draw)
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
        ranks = (iterates.objective, *iterates.others)[-1].tolist()
        ranked += [
            (ranks[lane], iterates.reconstruction(lane, victims.labels[victim]))
            for lane, victim in enumerate(owners)
        ]
    apart = [ranked[i : i + restarts] for i in range(0, len(ranked), restarts)]
    return [min(tries, key=lambda pair: pair[0])[1] for tries in apart]
