"""By how many places a language model's targets stand behind its inputs."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch.nn.functional import cross_entropy

from fedsim.store.capture import Observation
from fedsim.tasks.text import TextTask
from fedsim.types import Batch

_NEARER = 0.025
"""Difference of cosines with the update from which the words after next are the targets. Of six
texts in the span whose labels were shifted twice it is .054 and more (.27 of gpt2-8k), of others
below 0; half and twice of it judge the tests alike."""


def shift_note(observation: Observation, task: TextTask, guess: Batch) -> str:
    """That targets are not the next words, where sentences in the span show it; else empty.

    Data and model may both shift the labels: the last words of a text are then targets alone.
    """
    if task.spec.kind != "language-modelling" or guess.inputs.shape[1] < 4:
        return ""
    once, twice = (_cosine(observation, task, guess, shift) for shift in (1, 2))
    if twice <= max(once, 0.0) + _NEARER:
        return ""
    return (
        "the targets are not the next words but those after them, as where data and model both "
        "shift the labels: the last words of each text are targets alone, and are missing"
    )


def _cosine(observation: Observation, task: TextTask, guess: Batch, shift: int) -> float:
    """Cosine of the update with the gradient towards the words ``shift`` places later."""
    network = task.model(observation.sent)
    mask = torch.ones_like(guess.inputs) if guess.mask is None else guess.mask
    logits = cast(Any, network)(input_ids=guess.inputs, attention_mask=mask).logits
    targets = guess.inputs.masked_fill(mask == 0, -100)[:, shift:]
    loss = cross_entropy(logits[:, :-shift].flatten(0, 1), targets.flatten())
    parameters = {
        name: value
        for name, value in network.named_parameters()
        if name in observation.received and value.requires_grad
    }
    slopes = torch.autograd.grad(
        loss, list(parameters.values()), allow_unused=True, materialize_grads=True
    )
    product = slope_square = update_square = 0.0
    for name, slope in zip(parameters, slopes, strict=True):
        seen = observation.update((name,))[name]
        product += float((seen * slope.double()).sum())
        slope_square += float(slope.square().sum())
        update_square += float(seen.square().sum())
    lengths: float = (slope_square * update_square) ** 0.5
    return product / max(lengths, 1e-300)
