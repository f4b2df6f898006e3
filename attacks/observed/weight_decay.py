"""The share of the broadcast weights in a reply, as weight decay and L2 penalties leave it."""

from dataclasses import replace

import torch
from torch import nn

from attacks.observed.labels import Head, find_head
from fedsim.errors import CannotAttack
from fedsim.store.capture import Observation
from fedsim.tasks.base import Task
from fedsim.types import Batch, Tensors

_APART = 0.1
"""Largest sine of the sums of the head's rows, of the reply and of the weights, that counts as 0.
Sums of rounding errors are at right angles to them; half and double of it judge the tests alike."""
_SILENT = 0.02
"""Sine of a row of the update and of the weights, up to which it is of a silent unit: digits of
weights leave .001 of a decay of .002, and a gradient is at right angles to the weights."""
_FEWEST = 8
"""Inputs that the head needs: two sums of fewer may be parallel by accident."""


def loss_penalty(observation: Observation, task: Task) -> str:
    """That the loss which the attacker was given has a penalty on the weights; empty if it has not.

    Inputs are read off gradients of examples, beside which a penalty stands.
    """
    if task.modality == "text":  # its loss is that of transformers
        return ""
    network, head = _softmax_head(observation, task)
    if head is None:
        return ""
    inputs = torch.rand(1, *task.spec.input_shape, generator=torch.Generator().manual_seed(0))
    gradient = task.gradient(network, Batch(inputs, torch.zeros(1, dtype=torch.int64)))
    if not _share(gradient, observation.sent, head.weight):
        return ""
    return (
        "its loss holds a penalty on the weights; pass it without, as what a penalty leaves in a "
        "reply is taken out"
    )


def without_decay(observation: Observation, task: Task) -> tuple[Observation, str]:
    """The reply without its share of the weights that were sent, and what was taken out in words.

    The slopes of a softmax add up to 0 over its classes, so that of a sum over the rows of the
    head's gradient nothing is left but the share ``c`` of the same sum of the weights; that of its
    biases tells whether they have it, too. Exact for one step, and at the head for several.
    """
    network, head = _softmax_head(observation, task)
    if head is None or head.weight not in observation.received:
        return observation, ""
    share = _share(observation.update((head.weight,)), observation.sent, head.weight)
    if not share:
        return _without_own(observation, task, network)
    matrices = _spares_biases(observation, head, share)
    sign = 1 if observation.kind == "weights" else -1
    decayed = [
        name
        for name, value in network.named_parameters()
        if name in observation.received and (value.dim() > 1 or not matrices)
    ]
    received = dict(observation.received)
    for name in decayed:
        value = received[name]
        received[name] = (value.double() + sign * share * observation.sent[name].double()).to(value)
    what = "weights" if matrices else "parameters"
    return replace(observation, received=received), (
        f"it held {share:.3g} times the {what} that were sent, as weight decay or an L2 penalty "
        "leaves, which was taken out"
    )


def _without_own(
    observation: Observation, task: Task, network: nn.Module
) -> tuple[Observation, str]:
    """Without the share that single matrices show where silent units had no gradient.

    Steps that turn or cut a gradient, as Muon's, leave no sum of the head's rows at 0.
    """
    if task.modality == "text":  # rows of words that no text used are read as they came
        return observation, ""
    received, shares = dict(observation.received), dict[str, float]()
    sign = 1 if observation.kind == "weights" else -1
    for name, weight in network.named_parameters():
        if name not in received or weight.dim() != 2:
            continue
        value, sent = observation.update((name,))[name].double(), observation.sent[name].double()
        if share := _of_silent(value, sent) or _of_silent(value.T, sent.T):
            shares[name] = share
            received[name] = (received[name].double() + sign * share * sent).to(received[name])
    if not shares:
        return observation, ""
    held = ", ".join(f"{share:.3g} times {name!r}" for name, share in shares.items())
    said = f"it held {held}, as weight decay leaves, which was taken out"
    return replace(observation, received=received), said


def _of_silent(update: torch.Tensor, sent: torch.Tensor) -> float:
    """``c`` where several rows are ``c`` times those of the weights; 0 where they are not."""
    both, square = (update * sent).sum(1), sent.square().sum(1)
    if update.shape[1] < _FEWEST:
        return 0.0
    sines = (update - (both / square)[:, None] * sent).norm(dim=1) / update.norm(dim=1)
    shares = (both / square)[(sines < _SILENT) & (update != 0).any(1)]
    alike = len(shares) > 1 and float(shares.max()) < (1 + _SILENT) * float(shares.min())
    return float(shares.median()) if alike and float(shares.min()) > 0 else 0.0


def _softmax_head(observation: Observation, task: Task) -> tuple[nn.Module, Head | None]:
    """The network as broadcast, and its last layer where that is followed by a softmax."""
    if task.spec.target != "class" or task.spec.num_classes < 2:
        return nn.Identity(), None
    network = task.model(observation.sent)
    try:
        head = find_head(network)
    except CannotAttack:
        return network, None
    weight = dict(network.named_parameters()).get(head.weight)  # a layer may compute its weight
    wide = weight is not None and weight.shape[0] > 1 and weight.shape[1] >= _FEWEST
    return network, head if wide else None


def _share(update: Tensors, sent: Tensors, name: str) -> float:
    """``c`` of an update whose rows add up to ``c`` times those of the weights; 0 if to no such."""
    reply, weights = update[name].double().sum(0), sent[name].double().sum(0)
    both = float(reply @ weights)
    length = float(reply.norm() * weights.norm())
    if not length or 1 - (both / length) ** 2 > _APART**2:
        return 0.0
    return both / float(weights @ weights)


def _spares_biases(observation: Observation, head: Head, share: float) -> bool:
    if head.bias is None or head.bias not in observation.received:
        return False
    reply = float(observation.update((head.bias,))[head.bias].sum())
    return abs(reply) < 0.5 * abs(share * float(observation.sent[head.bias].sum()))
