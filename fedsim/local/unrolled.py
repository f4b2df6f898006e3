"""A client's local steps as a function of its examples that can be differentiated."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fedsim.config.federation import FederationConfig
from fedsim.tasks.base import Task
from fedsim.types import Batch, Tensors

_OPTIONS = (
    *("precision", "accumulation", "label_smoothing", "max_grad_norm"),
    *("schedule", "warmup_steps"),
)


def unrolls(config: FederationConfig) -> bool:
    """Whether ``unrolled_update`` takes such steps: plain ones of SGD, with momentum or without.

    The first step of Adam is nearly the sign of a gradient, which has no slope to follow.
    """
    defaults = FederationConfig.model_fields
    return config.plain and all(getattr(config, k) == defaults[k].default for k in _OPTIONS)


def unrolled_update(
    task: Task,
    config: FederationConfig,
    network: nn.Module,
    parameters: Tensors,
    batch: Batch,
    plan: Sequence[Tensor],
    *,
    differentiable: bool = True,
) -> Tensors:
    """How far local steps on a batch move the weights: those sent less those received.

    The steps are those of ``fedsim.local.steps.Descent``, written without changes in place.

    Args:
        task: whose loss is minimised.
        config: of which ``unrolls`` is true.
        network: as broadcast; not changed.
        parameters: those that are trained, by name.
        batch: the distinct examples of the round.
        plan: examples of each local step, int64 indices into ``batch``.
        differentiable: whether the result has a graph back to the examples.
    """
    sent = {name: value.detach() for name, value in parameters.items()}
    inertia = config.momentum if config.optimizer == "momentum" else 0.0
    speed = {name: torch.zeros_like(value) for name, value in sent.items()}
    weights = {name: value.clone().requires_grad_() for name, value in sent.items()}
    for step in plan:
        with torch.enable_grad():
            gradient = torch.autograd.grad(
                task.functional_loss(network, weights, batch[step]),
                list(weights.values()),
                create_graph=differentiable,
                allow_unused=True,
                materialize_grads=True,
            )
            for (name, value), slope in zip(weights.items(), gradient, strict=True):
                pull = config.weight_decay * value + config.proximal_mu * (value - sent[name])
                speed[name] = inertia * speed[name] + slope + pull
            weights = {n: value - config.learning_rate * speed[n] for n, value in weights.items()}
        if not differentiable:
            speed = {name: value.detach() for name, value in speed.items()}
            weights = {name: value.detach().requires_grad_() for name, value in weights.items()}
    update = {name: sent[name] - value for name, value in weights.items()}
    return update if differentiable else {name: value.detach() for name, value in update.items()}
