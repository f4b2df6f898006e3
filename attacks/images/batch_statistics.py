"""Batch statistics as evidence: a guess whose layers see other means and variances is no guess.

Yin et al. 2021 ("See through Gradients", GradInversion) match them; Huang et al. 2021 show that an
attack is judged by which statistics it is given. Here they are what crossed the wire: where a
client in train mode sends its buffers, these give the batch's own statistics away; where it keeps
them, the broadcast's running statistics stand in for them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from attacks.images.image_losses import ImageLoss
from attacks.observed.calls import noted
from attacks.observed.distance import EPSILON
from attacks.observed.replay import Replay
from attacks.observed.running_statistics import (
    MEAN,
    VARIANCE,
    counted_batches,
    tracking_layers,
    without_broadcast,
)
from fedsim.capture import Observation
from fedsim.errors import CannotAttack
from fedsim.types import Batch, Tensors


def observed_statistics(observation: Observation, network: nn.Module) -> Tensors:
    """Mean and unbiased variance at each normalisation layer, ``(channel,)`` in float32.

    The broadcast is taken out, see ``attacks.observed.running_statistics``. Where the buffers were
    not sent, or the number of steps is not known, what is there is taken as it is.

    Raises:
        CannotAttack: the model has no layer that keeps statistics, or more batches went through it
            than steps were taken, as where gradients are accumulated or a defense takes examples
            one by one: these do not have the statistics of a step's batch.
    """
    layers = {
        name: part
        for name, part in tracking_layers(observation, network).items()
        if isinstance(part, _BatchNorm)
    }
    if not layers:
        raise CannotAttack(
            "the model has no batch normalisation, hence no statistics to match",
            "Set batch_statistics = 0, or choose a model such as 'resnet20'.",
        )
    steps = 1 if observation.kind == "gradient" else observation.knowledge.local_steps
    statistics = {
        prefix + name: observation.received.get(buffer, observation.sent[buffer]).float()
        for name in layers
        for prefix, buffer in ((MEAN, f"{name}.running_mean"), (VARIANCE, f"{name}.running_var"))
    }
    if steps is None:
        return statistics
    for name, layer in layers.items():
        if (batches := counted_batches(observation, name, layer)) not in {None, steps}:
            raise CannotAttack(
                f"{name!r} counted {batches} batches in {steps} local steps",
                "Either there were other steps than are stated, or several batches made one step, "
                "or a defense takes examples one by one. Set batch_statistics = 0.",
            )
    sent = {k: v for k, v in layers.items() if f"{k}.running_mean" in observation.received}
    return statistics | without_broadcast(observation, sent, steps)


@dataclass(frozen=True)
class StatisticsLoss:
    """A matching loss, plus ``weight`` times the distance of the batch statistics.

    ``sum_l |mean_l(x) - mean_l| + |var_l(x) - var_l|`` in Euclidean norms (Yin et al. 2021, R_BN).
    The observed statistics stand beside the observed gradients, under names of their own.
    """

    loss: ImageLoss
    weight: float

    @property
    def model(self) -> Replay:
        """As broadcast."""
        return self.loss.model

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
        parts = model.network.named_modules()
        layers = {name: part for name, part in parts if isinstance(part, _BatchNorm)}
        with noted(layers) as calls:
            model.task.functional_loss(model.network, parameters, Batch(images, labels))
        total = torch.zeros((), device=images.device)
        for name, value in {call.name: call.input for call in calls}.items():
            variance, mean = torch.var_mean(value, (0, *range(2, value.dim())))
            for prefix, statistic in ((MEAN, mean), (VARIANCE, variance)):
                square = (statistic - observed[prefix + name]).square().sum()
                total = total + (square + EPSILON).sqrt()
        return total
