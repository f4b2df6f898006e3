"""Batch statistics as evidence: a guess whose layers see other means and variances is no guess.

Yin et al. 2021 ("See through Gradients", GradInversion) match them; Huang et al. 2021 show that an
attack is judged by which statistics it is given. Here they are what crossed the wire: where a
client in train mode sends its buffers, these give the batch's own statistics away; where it keeps
them, the broadcast's running statistics stand in for them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from attacks.images.image_losses import ImageLoss
from attacks.observed.distance import EPSILON
from fedsim.capture import Observation
from fedsim.errors import CannotAttack
from fedsim.types import Batch, Tensors

_MEAN, _VARIANCE = "batch-mean ", "batch-variance "
"""Before a layer's name; no parameter has a space in its name."""


def observed_statistics(observation: Observation, network: nn.Module) -> Tensors:
    """Mean and unbiased variance at each normalisation layer, ``(channel,)`` in float32.

    After ``n`` steps of momentum ``m`` the running statistics are
    ``(1 - m)^n sent + m sum_t (1 - m)^(n - 1 - t) batch_t``, so that one step gives the batch's
    exactly, up to ``1 / m`` times the rounding, and several steps their weighted mean. A cohort's
    variance lacks what its clients' means differ by. Where the buffers were not sent, or the number
    of steps is not known, what is there is taken as it is.

    Raises:
        CannotAttack: the model has no layer that keeps statistics, or more batches went through it
            than steps were taken, as where a defense takes examples one by one: single images do
            not have the statistics of a batch.
    """
    found: Tensors = {}
    steps = 1 if observation.kind == "gradient" else observation.knowledge.local_steps
    for name, layer in network.named_modules():
        if not isinstance(layer, _BatchNorm):
            continue
        if steps is not None and (seen := _batches(observation, name)) not in {None, steps}:
            raise CannotAttack(
                f"{name!r} counted {seen} batches in {steps} local steps",
                "Where a defense takes examples one by one, the statistics are those of single "
                "images. Set batch_statistics = 0.",
            )
        for prefix, buffer in ((_MEAN, "running_mean"), (_VARIANCE, "running_var")):
            sent = observation.sent[f"{name}.{buffer}"].double()
            value = observation.received.get(f"{name}.{buffer}", sent).double()
            if f"{name}.{buffer}" in observation.received and steps is not None:
                kept = (1 - (layer.momentum or 0.0)) ** steps
                value = value if kept == 1 else (value - kept * sent) / (1 - kept)
            found[prefix + name] = value.float()
    if not found:
        raise CannotAttack(
            "the model has no batch normalisation, hence no statistics to match",
            "Set batch_statistics = 0, or choose a model such as 'resnet20'.",
        )
    return found


def _batches(observation: Observation, layer: str) -> int | None:
    """How many batches a layer has counted in training; None where its count was not sent."""
    counter = f"{layer}.num_batches_tracked"
    if counter not in observation.received:
        return None
    return round(float(observation.received[counter] - observation.sent[counter]))


@dataclass(frozen=True)
class StatisticsLoss:
    """A matching loss, plus ``weight`` times the distance of the batch statistics.

    ``sum_l |mean_l(x) - mean_l| + |var_l(x) - var_l|`` in Euclidean norms (Yin et al. 2021, R_BN).
    The observed statistics stand beside the observed gradients, under names of their own.
    """

    loss: ImageLoss
    weight: float

    @property
    def network(self) -> nn.Module:
        """As broadcast."""
        return self.loss.network

    @property
    def smoother(self) -> float:
        """Factor of the total variation."""
        return self.loss.smoother

    def __call__(self, images: Tensor, labels: Tensor, observed: Tensors) -> Tensor:
        """The loss of ``images (example, channel, height, width)``, a scalar."""
        gradient = {name: value for name, value in observed.items() if " " not in name}
        return self.loss(images, labels, gradient) + self.weight * self.distance(
            images, labels, observed
        )

    def distance(self, images: Tensor, labels: Tensor, observed: Tensors) -> Tensor:
        """How far the statistics of these images lie from the observed ones."""
        model = self.loss.model
        parameters = {name: value.detach() for name, value in model.parameters.items()}
        with _inputs(model.network) as seen:
            model.task.functional_loss(model.network, parameters, Batch(images, labels))
        total = torch.zeros((), device=images.device)
        for name, value in seen.items():
            variance, mean = torch.var_mean(value, (0, *range(2, value.dim())))
            for prefix, own in ((_MEAN, mean), (_VARIANCE, variance)):
                square = (own - observed[prefix + name]).square().sum()
                total = total + (square + EPSILON).sqrt()
        return total


@contextmanager
def _inputs(network: nn.Module) -> Iterator[Tensors]:
    """What each normalisation layer is given while the network runs."""
    seen: Tensors = {}

    def note(name: str) -> torch.utils.hooks.RemovableHandle:
        def hook(module: nn.Module, args: tuple[Tensor, ...]) -> None:
            del module
            seen[name] = args[0]

        return network.get_submodule(name).register_forward_pre_hook(hook)

    layers = [name for name, part in network.named_modules() if isinstance(part, _BatchNorm)]
    handles = [note(name) for name in layers]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()
