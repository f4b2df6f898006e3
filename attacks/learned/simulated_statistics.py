"""The batch statistics that clients would see if they held the attacker's own images."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.modules.batchnorm import _NormBase

from attacks.observed.local_steps import LocalSteps
from attacks.observed.running_statistics import (
    MEAN,
    VARIANCE,
    broadcast_and_steps,
    counted_batches,
    tracking_layers,
    without_broadcast,
)
from fedsim.errors import CannotAttack
from fedsim.seeds import derive, seeded
from fedsim.store.capture import Observation
from fedsim.tasks.base import Task
from fedsim.types import Tensors

_BUFFERS = {MEAN: "running_mean", VARIANCE: "running_var"}
_AT_ONCE = 64
"""Images in one pass."""


@dataclass(frozen=True)
class SimulatedStatistics:
    """What a client's running statistics say of its batches, by forward passes alone.

    All steps are taken at the broadcast weights, and those of several epochs on the same batches.

    Attributes:
        network: the broadcast model in train mode, whose layers keep the last batch alone.
        layers: those whose statistics came back, by name.
        spread: distribution of an update's images over clients and steps, as the layers counted
            batches: where a defense takes images one by one, each is a batch.
        shares: of each layer, the weight of each of the client's batches in what comes back, which
            add up to 1, ``(batch,)``.
    """

    network: nn.Module
    layers: Mapping[str, _NormBase]
    spread: LocalSteps
    shares: Mapping[str, Tensor]

    @classmethod
    def of(cls, observation: Observation, task: Task, device: torch.device) -> SimulatedStatistics:
        """The client of this observation.

        Raises:
            CannotAttack: no running statistics came back, or it is not known of which batches.
        """
        broadcast = task.model(observation.sent, device=device)
        layers = _sent_back(observation, tracking_layers(observation, broadcast))
        spread = _spread(observation, layers)
        count, shares = len(spread.batches), {}
        for name, layer in layers.items():
            weights = broadcast_and_steps(observation, name, layer, spread.steps)[1:]
            sums = torch.stack([weights[number::count].sum() for number in range(count)])
            shares[name] = (sums / sums.sum()).float().to(device)
        network = copy.deepcopy(broadcast).train().requires_grad_(False)
        for name in layers:
            network.get_submodule(name).momentum = 1.0  # type: ignore[assignment]
        return cls(network, layers, spread, shares)

    @property
    def groups(self) -> list[int]:
        """Number of features of each layer's means, and of its variances."""
        widths = [len(self.network.get_buffer(f"{name}.running_mean")) for name in self.layers]
        return [width for width in widths for _ in _BUFFERS]

    @property
    def kind(self) -> tuple[int, int, int]:
        """Number of images, of batches of each client, and of features."""
        return self.spread.examples, self.spread.steps, sum(self.groups)

    def observed(self, observation: Observation) -> Tensor:
        """The features of what came back, ``(feature,)``."""
        statistics = without_broadcast(observation, self.layers, self.spread.steps)
        device = next(self.network.parameters()).device
        return self._features({name: value.to(device) for name, value in statistics.items()})

    @torch.no_grad()
    def __call__(self, images: Tensor, seed: int) -> Tensor:
        """The features ``(update, feature)`` of each ``spread.examples`` images in a row."""
        clients = images.unflatten(0, (-1, self.spread.rows))
        total: Tensors = {}
        with seeded(derive(seed, "dropout")):
            for number, (places, _) in enumerate(self.spread.batches):
                for name, value in self._of_batches(clients[:, places]).items():
                    layer = name.partition(" ")[2]
                    total[name] = total.get(name, 0) + self.shares[layer][number] * value
        cohort = self.spread.clients
        return self._features({k: v.unflatten(0, (-1, cohort)).mean(1) for k, v in total.items()})

    def _of_batches(self, images: Tensor) -> Tensors:
        """Mean and unbiased variance of each layer, ``(batch, channel)``, of each batch."""
        parameters = dict(self.network.named_parameters())
        names = [f"{layer}.{kind}" for layer in self.layers for kind in _BUFFERS.values()]
        blank = {name: self.network.get_buffer(name) for name in names}

        def passed(batch: Tensor, buffers: Tensors) -> Tensors:
            functional_call(self.network, {**parameters, **buffers}, (batch,))
            return buffers

        parts = []
        for batches in images.split(max(1, _AT_ONCE // images.shape[1])):
            buffers_of = {k: v.expand(len(batches), *v.shape).clone() for k, v in blank.items()}
            parts.append(vmap(passed, randomness="different")(batches, buffers_of))
        return {
            prefix + layer: torch.cat([part[f"{layer}.{kind}"] for part in parts])
            for layer in self.layers
            for prefix, kind in _BUFFERS.items()
        }

    def _features(self, statistics: Tensors) -> Tensor:
        """Means and logarithms of the variances, layer after layer."""
        values = []
        for name, layer in self.layers.items():
            variance = statistics[VARIANCE + name].clamp_min(0)
            values += [statistics[MEAN + name], (variance + layer.eps).log()]
        return torch.cat(values, -1)


def _sent_back(observation: Observation, layers: Mapping[str, _NormBase]) -> dict[str, _NormBase]:
    """The layers whose statistics came back, and had moved."""
    if not layers:
        raise CannotAttack(
            "the model has no normalisation layer that keeps running statistics",
            "Choose a model such as 'resnet20', or another attack.",
        )
    sent = {k: v for k, v in layers.items() if f"{k}.running_mean" in observation.received}
    moved = {
        name: layer
        for name, layer in sent.items()
        if not torch.equal(
            observation.received[f"{name}.running_mean"], observation.sent[f"{name}.running_mean"]
        )
    }
    if observation.knowledge.train_mode is False or (sent and not moved):
        raise CannotAttack(
            "the client was in evaluation mode, in which running statistics stay what they were",
            "Set federation.train_mode = true, or choose another attack.",
        )
    if not sent:
        raise CannotAttack(
            "the client kept its running statistics (batch_statistics = 'kept')",
            "Choose another attack.",
        )
    return moved


def _spread(observation: Observation, layers: Mapping[str, _NormBase]) -> LocalSteps:
    """The update's images by client and batch, as the layers counted."""
    spread = LocalSteps.of(observation)
    if spread is None:
        raise CannotAttack(
            f"how {observation.knowledge.num_examples} images were spread over "
            f"{observation.knowledge.cohort} clients and their local steps is not known",
            "Let batches be of one size.",
            observation.knowledge.missing(frozenset({"batch_size", "local_steps"})),
        )
    counts = {counted_batches(observation, *layer) for layer in layers.items()} - {None}
    if counts <= {spread.steps}:
        return spread
    alone = sum(count * (places.stop - places.start) for places, count in spread.batches)
    if counts == {alone}:  # as where a defense takes images one by one
        return replace(spread, batch=1, steps=alone)
    raise CannotAttack(
        f"normalisation layers counted {counts} batches in {spread.steps} local "
        f"steps of {alone} images",
        "Let each step take one batch.",
    )
