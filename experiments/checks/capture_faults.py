"""Faults of a capture, recognised by comparing its tensors with those of a replay."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import nn

from fedsim.config.cell import CaptureConfig
from fedsim.store.capture import Observation
from fedsim.types import Tensors


def missing_tensors(seen: Observation, model: nn.Module) -> Iterator[str]:
    """Report parameters and persistent buffers missing from the broadcast."""
    buffers = {name for name, _ in model.named_buffers()} & set(model.state_dict())
    lacking = sorted((buffers | {n for n, _ in model.named_parameters()}) - set(seen.sent))
    if lacking:
        what = "buffers" if set(lacking) <= buffers else "tensors"
        yield (
            f"{what} missing from the broadcast: {', '.join(lacking[:3])}"
            f"{' ...' * (len(lacking) > 3)}. Send persistent buffers with the parameters."
        )


def unwritten_tensors(seen: Observation, weights: Tensors, model: nn.Module) -> Iterator[str]:
    """Report tensors of a network made in poisoned memory that nothing has written.

    Args:
        seen: a capture, in whose broadcast a training that diverged may leave NaN.
        weights: of the network as the task builds it.
        model: with what was sent.
    """
    loaded = dict(model.named_parameters()) | dict(model.named_buffers())
    spoilt = {name for name, value in seen.sent.items() if value.isnan().any()}
    lacking = {name for name, value in weights.items() if value.isnan().any()}
    lacking |= {name for name, value in loaded.items() if value.isnan().any()} - spoilt
    if lacking:
        yield (
            f"tensors that the network never writes: {', '.join(sorted(lacking)[:3])}"
            f"{' ...' * (len(lacking) > 3)}. They are whatever the memory held; draw or set them "
            "where the network is made."
        )


def swapped_tensors(seen: Observation, replayed: Tensors) -> Iterator[str]:
    """Report tensors whose values belong to another name."""
    for name, value in seen.received.items():
        if name not in replayed or _close(value, replayed[name]):
            continue
        for other, candidate in replayed.items():
            if other != name and candidate.shape == value.shape and _close(value, candidate):
                yield (
                    f"wrong parameter order: {name!r} holds the values of {other!r}. "
                    "Address tensors by name; safetensors sorts them."
                )
                break


def _close(first: torch.Tensor, second: torch.Tensor) -> bool:
    if first.shape != second.shape:
        return False
    scale = float(second.double().norm())
    return scale > 0 and float((first.double() - second.double()).norm()) <= 1e-4 * scale


def scale_between(seen: Observation, replayed: Tensors) -> float | None:
    """The factor between captured and replayed update, if they differ by a factor alone."""
    theirs = seen.update()
    ours = replace(seen, received=replayed).update()
    dot = sum(float((theirs[k] * ours[k]).sum()) for k in theirs if k in ours)
    power = norm(ours) ** 2
    if power == 0:
        return None
    scale = dot / power
    rest = {k: theirs[k] - scale * ours[k] for k in theirs if k in ours}
    return scale if norm(rest) <= 1e-4 * norm(theirs) and abs(scale - 1) > 1e-3 else None


def stored(reply: Tensors, policy: CaptureConfig) -> Tensors:
    """What the server keeps of a reply."""
    return {name: value for name, value in reply.items() if policy.keeps_tensor(name)}


def distance(first: Tensors, second: Tensors) -> float:
    """Euclidean distance over all tensors; infinite if names or shapes differ."""
    if first.keys() != second.keys() or any(first[k].shape != second[k].shape for k in first):
        return math.inf
    return norm({name: first[name].double() - second[name].double() for name in first})


def norm(tensors: Tensors) -> float:
    """Euclidean norm over all tensors."""
    return math.sqrt(sum(float(value.double().square().sum()) for value in tensors.values()))
