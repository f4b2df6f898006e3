"""Image matching over all rounds in which a client held the same rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache

import torch
from torch import Tensor

from attacks.base import Job, Reconstruction
from attacks.images.victims import RoundsLoss, VictimGroup
from attacks.observed.labels import find_head, infer_label, round_counts
from attacks.observed.same_rows import round_by_round
from fedsim.capture import Observation
from fedsim.tasks.base import Task


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
