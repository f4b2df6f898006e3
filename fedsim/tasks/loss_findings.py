"""What attacks take for granted of a loss: that it is a function, and a sum over examples."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from fedsim.errors import ConfigError
from fedsim.process import PROCESS
from fedsim.tasks.targets import Objective, TargetForm
from fedsim.types import Batch

_DIFFERS = 1e-4
"""Relative difference of two gradients that rounding in float32 does not explain. Usual losses of
the tests stay below 1e-7, random and coupled ones above .1; the tests pass at half and at twice."""

COUNTS = (2, 3, 4)  # examples of the batches that are tried


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
    always on or a latent that is drawn. It couples the examples of a batch if two, in the first
    and the last place, in either order have another gradient than either twice, which means,
    penalties and noise by places have not. A loss that fails on two is asked about three and four.

    Args:
        objective: scalar loss of (network, batch).
        network: in eval mode.
        takes: the form of its targets.
        width: number of outputs that the loss is about.
        given: makes the batch that the loss takes of inputs and targets as attacks hold them.
        shape: of an input as attacks hold it.
    """
    for count in COUNTS:
        rows = torch.rand(count, *shape, generator=torch.Generator().manual_seed(1))
        labels = takes.blank(count)
        if takes.kind == "numbers" and takes.size > 1:
            labels = torch.ones_like(labels)
        try:
            return _departure(
                lambda batch: _gradient(objective, network, given(batch)),
                takes,
                width,
                Batch(rows, labels),
            )
        except Exception:  # the loss is foreign code, and may take pairs or triples
            continue
    return ""


def _departure(of: Callable[[Batch], Tensor], takes: TargetForm, width: int, batch: Batch) -> str:
    """What is unusual of the gradients of a batch's examples in several orders."""
    places = list(range(count := len(batch)))

    def gradient(*chosen: int) -> Tensor:
        return of(batch[list(chosen)])

    with PROCESS, torch.random.fork_rng(devices=()):
        once, again = (gradient(*places) for _ in range(2))
    if not once.isfinite().all() or not once.any():
        raise ValueError
    apart = float((once - again).norm() / once.norm().clamp(min=1e-30))
    if apart > _DIFFERS:
        return (
            f"the loss draws random numbers: the gradients of the same batch differ by {apart:.0%} "
            "from call to call, so that an attack needs the draw, or must solve for it"
        )
    first, *middle, last = places
    ends = ((first, last), (last, first), (first, first), (last, last))
    slopes = torch.stack([gradient(start, *middle, end) for start, end in ends])
    if (slopes[:2].sum(0) - slopes[2:].sum(0)).norm() <= _DIFFERS * slopes.norm():
        return ""
    said = "the loss couples the examples of a batch"
    if takes.kind == "numbers" and (width, takes.size) == (1, 2):
        said += " and takes two targets a row, as (time, event) of a survival loss"
    if count == COUNTS[0] and not gradient(0).any():
        said += "; the gradient of one example alone is zero"
    return said


def _gradient(objective: Objective, network: nn.Module, batch: Batch) -> Tensor:
    parameters = [value for value in network.parameters() if value.requires_grad]
    slopes = torch.autograd.grad(
        objective(network, batch), parameters, allow_unused=True, materialize_grads=True
    )
    return torch.cat([slope.flatten() for slope in slopes])


def runs(objective: Objective, network: nn.Module, inputs: Tensor) -> bool:
    """Whether the loss can be computed for some form of targets."""
    rows = torch.zeros(len(inputs))
    for labels in (rows.long(), rows, rows[:, None]):
        try:
            objective(network, Batch(inputs, labels))
        except Exception:  # the loss is foreign code
            continue
        return True
    return False


def failing(error: Exception, objective: Objective, network: nn.Module, row: Tensor) -> ConfigError:
    """Why a loss cannot be used that fails on one example."""
    for count in COUNTS:
        if runs(objective, network, row.expand(count, *row.shape[1:])):
            return ConfigError(
                f"loss: runs on {count} examples and fails on one ({said_of(error)}), as "
                "contrastive losses do, which compare examples. Attacks match losses of single "
                "examples, and none is for such a loss."
            )
    return ConfigError(
        f"loss: fails on one example ({said_of(error)}). Write a function of (model, batch), with "
        "batch.inputs and batch.labels, of a network in eval mode: what forward returns must not "
        "depend on self.training."
    )


def said_of(error: Exception) -> str:
    """An error of foreign code in a few words."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:120]}"
