"""The classes of a batch: those that are granted, else those that the update gives away."""

import torch
from torch import Tensor

from attacks.base import Job
from attacks.observed.declared import declared
from attacks.observed.labels import Head, count_labels, find_head, infer_label, round_counts
from attacks.observed.single_target import single_target
from fedsim.defenses.base import Defense
from fedsim.defenses.chain import Chain
from fedsim.errors import CannotAttack
from fedsim.store.capture import Observation
from fedsim.tasks.base import Task
from fedsim.types import Tensors


def known_labels(
    observation: Observation,
    task: Task,
    rng: torch.Generator,
    job: Job,
    *,
    adaptive: bool = False,
) -> Tensor:
    """Classes int64 ``(batch,)``: the granted ones, else those that the update gives away.

    Where the target is no class, and the batch a single example, it is ``(1, target)``.

    An ``adaptive`` attacker reads an update whose length the declared defense cut up to its scale,
    and a mean of signed or pruned gradients by what these leave of each example.

    Raises:
        CannotAttack: the update does not tell, or adaptive, and the defense is not known.
    """
    knowledge = observation.knowledge
    if knowledge.labels is not None:
        return torch.tensor(knowledge.labels)
    assert knowledge.num_examples is not None
    if task.spec.target == "none":
        return task.any_labels(knowledge.num_examples)
    if knowledge.num_examples == 1:
        return _single(observation, task)
    if task.spec.target != "class":
        raise CannotAttack(
            f"the targets of {knowledge.num_examples} examples are no classes, and are mixed in "
            "the gradient of the last layer",
            "Choose 'dlg', which searches for them, or an update of one example.",
        )
    auxiliary = job.auxiliary() if knowledge.auxiliary else None
    defense = declared(observation) if adaptive else Chain()
    alone = _alone(observation, defense)
    if alone is not None and alone.sends_signs:
        head = find_head(task.build())
        if head.bias in observation.received:
            return torch.repeat_interleave(
                _signed_counts(observation.update(), head, knowledge.num_examples)
            )
    scaled = "scale" in defense.distortions
    counts = count_labels(
        observation,
        task,
        knowledge.num_examples,
        rng,
        auxiliary,
        scaled=scaled,
        ranked=alone is not None and alone.keeps_largest,
        predicted=job.predicted,
    )
    return torch.repeat_interleave(counts)


def _single(observation: Observation, task: Task) -> Tensor:
    network = task.model(observation.sent)
    update, head = observation.update(), find_head(network)
    if task.modality == "text":
        return torch.tensor([infer_label(update, head)])
    return single_target(network.double(), task, update, head).target.cpu()


def _alone(observation: Observation, defense: Chain) -> Defense | None:
    """The only defense, if it changes each example's gradient before the mean is taken."""
    facts = observation.knowledge
    single = len(defense.defenses) == 1 and defense.per_example
    return defense.defenses[0] if single and facts.cohort == 1 and facts.local_steps == 1 else None


def _signed_counts(update: Tensors, head: Head, total: int) -> Tensor:
    """How often each class occurs, from a mean of signs.

    The bias gradient of one example is negative at its class only, so that its mean sign at a class
    is 1 less twice the class's share. The largest mean of all is that of signs that agree.
    """
    unit = torch.stack([value.abs().max() for value in update.values()]).max()
    return round_counts(total * (1 - update[str(head.bias)] / unit).double() / 2, total)
