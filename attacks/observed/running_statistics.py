"""Running statistics that a client sends back, and what they say of the batches that it saw."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.instancenorm import _InstanceNorm

from fedsim.knowledge import Fact
from fedsim.store.capture import Observation
from fedsim.types import Tensors

MEAN, VARIANCE = "batch-mean ", "batch-variance "
"""Before a layer's name; no parameter has a space in its name."""


def tracking_layers(observation: Observation, network: nn.Module) -> dict[str, _NormBase]:
    """The normalisation layers whose running statistics were broadcast, by name."""
    return {
        name: part
        for name, part in network.named_modules()
        if isinstance(part, _NormBase) and f"{name}.running_mean" in observation.sent
    }


def counted_batches(observation: Observation, name: str, layer: _NormBase) -> int | None:
    """How many batches a layer saw in training; None where what was sent does not tell.

    A reply that is a fraction is a mean of several clients, and formats of few digits keep no
    count: bfloat16 makes 256 of 257.
    """
    counter = f"{name}.num_batches_tracked"
    if counter not in observation.received or isinstance(layer, _InstanceNorm):
        return None
    after = observation.received[counter]
    value = float(after)
    coarse = after.is_floating_point() and value * torch.finfo(after.dtype).eps >= 1
    if coarse or value != int(value):
        return None
    return int(value) - _counted_before(observation, name)


def _counted_before(observation: Observation, name: str) -> int:
    """The count that a layer of the broadcast model has.

    The mean over clients is a fraction, which ``load_state_dict`` cuts to the whole number below.
    """
    return int(observation.sent.get(f"{name}.num_batches_tracked", torch.zeros(())))


def facts_shown(observation: Observation, network: nn.Module) -> dict[Fact, Any]:
    """What a client's normalisation layers show of its training, by the names of the facts.

    Layers that count batches were in training, and each batch is taken for a step. Empty unless all
    of them counted as many, as the mean of several clients may not, but for those that are frozen.
    """
    layers = tracking_layers(observation, network)
    every = (counted_batches(observation, *layer) for layer in layers.items())
    counts = {count for count in every if count is not None}
    moved = counts - {0}
    if observation.kind == "gradient" or len(moved) != 1 or (count := moved.pop()) < 1:
        return {}
    return {"local_steps": count} if 0 in counts else {"local_steps": count, "train_mode": True}


def broadcast_and_steps(
    observation: Observation, name: str, layer: _NormBase, steps: int
) -> Tensor:
    """The weight in what came back of what was broadcast, and of each step, ``(1 + step,)``.

    Each step of momentum ``m`` makes ``(1 - m) old + m batch``. Without momentum (None) a layer
    keeps the mean over all batches that it ever counted, so that ``m`` is one over their number;
    an instance normalisation, which counts none, then never moves. The weights add up to 1.

    Args:
        observation: with the count of the broadcast layer.
        name: of the layer.
        layer: of the broadcast model.
        steps: batches that the layer saw in training.
    """
    before = _counted_before(observation, name)
    weights = torch.ones(1, dtype=torch.float64)
    for step in range(steps):
        share = layer.momentum
        if share is None:
            share = 0.0 if isinstance(layer, _InstanceNorm) else 1 / (before + step + 1)
        weights = torch.cat([(1 - share) * weights, weights.new_tensor([share])])
    return weights


def without_broadcast(
    observation: Observation, layers: Mapping[str, _NormBase], steps: int
) -> Tensors:
    """Mean and unbiased variance at each layer, float32 ``(channel,)``, the broadcast's taken out.

    One step gives the batch's exactly, up to ``1 / momentum`` times the rounding, and several steps
    their mean by ``broadcast_and_steps``. A cohort's variance lacks what its clients' means differ
    by. Layers that never move are left out.

    Args:
        observation: with the statistics of these layers.
        layers: of the broadcast model, by name.
        steps: batches that each layer saw in training.
    """
    statistics: Tensors = {}
    for name, layer in layers.items():
        share = float(broadcast_and_steps(observation, name, layer, steps)[0])
        if share == 1:
            continue
        for prefix, buffer in ((MEAN, "running_mean"), (VARIANCE, "running_var")):
            sent = observation.sent[f"{name}.{buffer}"].double()
            received = observation.received[f"{name}.{buffer}"].double()
            statistics[prefix + name] = ((received - share * sent) / (1 - share)).float()
    return statistics
