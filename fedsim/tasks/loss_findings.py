"""What attacks take for granted of a loss: that it is a function, and a sum over examples."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from fedsim.process import PROCESS
from fedsim.tasks.targets import Objective, TargetForm
from fedsim.types import Batch

_DIFFERS = 1e-4
"""Relative difference of two gradients that rounding in float32 does not explain. Usual losses of
the tests stay below 1e-7, random and coupled ones above .1; the tests pass at half and at twice."""


def findings(
    objective: Objective,
    network: nn.Module,
    takes: TargetForm,
    width: int,
    given: Callable[[Batch], Batch],
    shape: tuple[int, ...],
) -> str:
    """What is unusual of a loss, one clause; empty if nothing is.

    A loss is random if the gradients of one batch differ between two calls, as by dropout that is
    always on or a latent that is drawn. It couples the examples of a batch if two in either order
    have another gradient than either twice, which means, penalties and noise by places have not.

    Args:
        objective: scalar loss of (network, batch).
        network: in eval mode.
        takes: the form of its targets.
        width: number of outputs that the loss is about.
        given: makes the batch that the loss takes of inputs and targets as attacks hold them.
        shape: of an input as attacks hold it.
    """
    rng = torch.Generator().manual_seed(1)
    rows, labels = torch.rand(2, *shape, generator=rng), takes.blank(2)
    if takes.kind == "numbers" and takes.size > 1:
        labels = torch.ones_like(labels)

    def batch(*places: int) -> Batch:
        return given(Batch(rows[list(places)], labels[list(places)]))

    with PROCESS, torch.random.fork_rng(devices=()):
        first, second = (_gradient(objective, network, batch(0, 1)) for _ in range(2))
    apart = float((first - second).norm() / first.norm().clamp(min=1e-30))
    if apart > _DIFFERS:
        return (
            f"the loss draws random numbers: the gradients of the same batch differ by {apart:.0%} "
            "from call to call, so that an attack needs the draw, or must solve for it"
        )
    pairs = ((0, 1), (1, 0), (0, 0), (1, 1))
    slopes = torch.stack([_gradient(objective, network, batch(*pair)) for pair in pairs])
    if (slopes[:2].sum(0) - slopes[2:].sum(0)).norm() <= _DIFFERS * slopes.norm():
        return ""
    said = "the loss couples the examples of a batch"
    if takes.kind == "numbers" and (width, takes.size) == (1, 2):
        said += " and takes two targets a row, as (time, event) of a survival loss"
    if not _gradient(objective, network, batch(0)).any():
        said += "; the gradient of one example alone is zero"
    return said


def _gradient(objective: Objective, network: nn.Module, batch: Batch) -> Tensor:
    parameters = [value for value in network.parameters() if value.requires_grad]
    slopes = torch.autograd.grad(
        objective(network, batch), parameters, allow_unused=True, materialize_grads=True
    )
    return torch.cat([slope.flatten() for slope in slopes])
