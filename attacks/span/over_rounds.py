"""Sentences from all rounds in which a client held the same rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from attacks.base import Job, Reconstruction
from attacks.observed.readings import read
from attacks.observed.same_rows import round_by_round
from fedsim.store.capture import Observation
from fedsim.tasks.text import TextTask
from fedsim.types import Batch, Tensors


def over_rounds(
    observations: Sequence[Observation],
    search: Callable[[Observation, int], Reconstruction],
    task: TextTask,
    job: Job,
) -> list[Reconstruction]:
    """One guess for each of a client's observations, from all rounds up to it with the same rows.

    The sentences are sought in the mean of the updates (``joined``). Of what is found there and in
    the rounds before, the guess is what explains all updates best, each at its own weights. What is
    proven stays.

    Args:
        observations: of one client.
        search: the guess from one observation; takes the position of its last round, too.
        task: defines the loss.
        job: its time budget; when that ends, later rounds keep the last guess.
    """

    def guess(rounds: Sequence[int], before: Reconstruction | None) -> Reconstruction:
        if before is not None and before.certified:
            return before
        seen = [observations[position] for position in rounds]
        new = search(joined(seen), rounds[-1])
        if before is None or job.expired or new.certified:
            return new
        both = [
            explained(seen, task, reconstruction.guess, job) for reconstruction in (before, new)
        ]
        if both[0] < both[1]:
            return new
        # A search that was cut short might have explained more.
        return replace(before, expired=new.expired, exhausted=new.exhausted)

    return round_by_round(observations, guess, job)


def joined(rounds: Sequence[Observation]) -> Observation:
    """The mean update of several rounds, as one observation at the mean of their weights.

    The mean of gradients is the gradient at the mean weights, up to second order in how far they
    move, while noise drawn anew falls as ``1 / sqrt(rounds)``. This is more than adding up what
    each round says: a direction of the gradient shows in a round only above the noise's edge, and
    rounds of which none shows it would add up to nothing. An entry that pruning left out in some
    rounds is the mean of the others.

    The defense of one round is not that of the mean, which hence has none declared.
    """
    last = rounds[-1]
    if len(rounds) == 1:
        return last
    sent = {
        name: torch.stack([seen.sent[name] for seen in rounds]).mean(0)
        if value.is_floating_point()
        else value
        for name, value in last.sent.items()
    }
    updates = [seen.update() for seen in rounds]
    optimizer = None if last.kind == "gradient" else last.knowledge.optimizer
    received = {}
    for name in updates[-1]:
        mean = _mean([seen[name] for seen in updates], optimizer)
        shown = {"weights": sent[name] - mean, "difference": -mean}
        received[name] = shown.get(last.kind, mean).float()
    knowledge = last.knowledge.model_copy(update={"defense": None})
    return replace(last, sent=sent, received=received, knowledge=knowledge)


def _mean(values: Sequence[Tensor], optimizer: str | None) -> Tensor:
    """Of the entries that were sent; of all where none was."""
    known = torch.stack([read(value, optimizer).sent for value in values])
    known |= ~known.any(0)
    return (torch.stack(list(values)) * known).sum(0) / known.sum(0)


def explained(rounds: Sequence[Observation], task: TextTask, batch: Batch, job: Job) -> float:
    """How well a batch explains all updates: ``sum <Y_t, g_t> / sqrt(sum |g_t|^2)``.

    ``g_t`` is its gradient at the weights of round t. Under white noise this is the root of the
    gain in log-likelihood at the best common scale, in units of the noise. Classes that are not
    known leave nothing to compare, and the result is minus infinity.
    """
    if task.spec.num_classes and bool((batch.labels < 0).any()):
        return -torch.inf
    both = square = 0.0
    for seen in rounds:
        network = task.model(seen.sent, device=job.device)
        for name, parameter in network.named_parameters():
            parameter.requires_grad_(name in seen.received)
        gradient = task.gradient(network, batch.to(job.device))
        update = seen.update(gradient)
        both += _inner(gradient, update)
        square += _inner(gradient, gradient)
    return both / square**0.5 if square else -torch.inf


def _inner(a: Tensors, b: Tensors) -> float:
    return sum(float((a[k].cpu().double() * b[k].cpu().double()).sum()) for k in a)
