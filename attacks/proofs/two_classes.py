"""The sign of a reply of another application, where a head of two classes hides it.

Such a head's gradient is ``c (p - y) (1, -1)`` with the probability ``p`` of a class that the
example's inputs determine. The other class with a negative factor, ``-c (1 - p) / p`` or its
inverse, makes the same message, so that no part of it tells the sign. Two things do: a gradient
that nothing multiplied has a factor of 1, which only one of both has unless ``p`` is one half; and
a loss weighs the examples of a batch alike, which only one of both allows.
"""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from attacks.observed.replay import step_length
from attacks.proofs.replayed_steps import prove
from attacks.proofs.verdict import NO_PROOF, Proof
from fedsim.knowledge import Fact
from fedsim.store.capture import Observation
from fedsim.tasks.base import Task
from fedsim.types import Batch

_STEPS: frozenset[Fact] = frozenset({"learning_rate", "local_steps"})
_SAME = 1e-3
"""Relative difference of two factors that float32 explains."""
_EVEN = 10 * _SAME
"""Difference of the losses of two classes, under the cross-entropy the logarithm of the ratio of
their factors, up to which both factors may be 1."""
UNSETTLED = (
    "the examples explain the reply, but so do those of the other class with the opposite sign and "
    "another factor, so that none is certified"
)


def negated(observation: Observation) -> Observation:
    """The reply times -1."""
    received = {name: -value for name, value in observation.received.items()}
    return replace(observation, received=received)


def has_two_classes(task: Task) -> bool:
    """Whether an example has one of two classes."""
    return task.spec.target == "class" and task.spec.num_classes == 2


def sign_behind(observation: Observation, task: Task, batch: Batch) -> int | None:
    """The sign of a gradient that examples explain: 1, -1, or 0 if both do.

    Args:
        observation: of kind ``gradient``, as received.
        task: whose loss is compared.
        batch: the examples, with the classes of either sign.

    Returns:
        None where classes are not known, or neither sign explains the reply.
    """
    unknown = task.spec.target == "class" and bool((batch.labels == -1).any())
    if unknown or not len(batch):
        return None
    usual = [1.0]
    if not observation.knowledge.missing(_STEPS, "counted"):
        usual.append(step_length(replace(observation, kind="weights")))
    signs, plain = set[int](), set[int]()
    for sign, proof in _proofs(observation, task, batch):
        signs.add(sign)
        if any(abs(proof.factor / length - 1) <= max(_SAME, proof.bound) for length in usual):
            plain.add(sign)
            if sign > 0 and _alone(observation, task, batch):
                return sign
    fitting = plain or signs
    if len(fitting) > 1:
        return 0
    return fitting.pop() if fitting else None


def _alone(observation: Observation, task: Task, batch: Batch) -> bool:
    """Whether the other sign surely has another factor than 1."""
    if not has_two_classes(task):
        return True
    if len(batch) > 1 or observation.knowledge.learning_rate:
        return False
    network = task.model(observation.sent, device=batch.inputs.device)
    with torch.no_grad():
        first, second = (
            float(task.loss(network, replace(batch, labels=labels)))
            for labels in (batch.labels, 1 - batch.labels)
        )
    return abs(first - second) > _EVEN


def _proofs(observation: Observation, task: Task, batch: Batch) -> Iterator[tuple[int, Proof]]:
    """The proofs that hold, of both assignments of two classes; each fits one sign at most."""
    labels, granted = batch.labels, observation.knowledge.labels
    tried: tuple[Tensor, ...] = (labels,)
    if has_two_classes(task):
        tried = (labels, 1 - labels) if granted is None else (labels.new_tensor(granted),)
    inputs = batch.inputs.double() if batch.inputs.is_floating_point() else batch.inputs
    for given in tried:
        example = replace(batch, inputs=inputs, labels=given)
        sign, proof = 1, prove(observation, task, example)
        if proof == NO_PROOF:
            sign, proof = -1, prove(negated(observation), task, example)
        if proof.holds:
            yield sign, proof
