"""Local training that nobody stated, taken for one step of a length that the update tells."""

from __future__ import annotations

from dataclasses import replace

import torch

from attacks.observed.labels import find_head, told_length
from attacks.observed.readings import read
from fedsim.capture import Observation
from fedsim.errors import CannotAttack
from fedsim.knowledge import MULTIPLES, Fact
from fedsim.tasks.base import Task

STEPS: frozenset[Fact] = frozenset({"learning_rate", "local_steps"})


def with_steps(
    seen: Observation, task: Task, rng: torch.Generator
) -> tuple[Observation, str] | None:
    """The observation with the facts that it lacks about its steps, and a clause that says so.

    All steps together count as one along the mean gradient, as where they are known. Their length
    is told by the head's bias. Where the learning rate is known, the length tells the steps.

    Returns:
        None where both facts are known, or nothing tells the length: the head has no bias, the
        targets are no classes, or the optimizer sends no multiple of a gradient.
    """
    known = seen.knowledge
    missing = known.missing(STEPS)
    classes = task.spec.target == "class" and task.spec.num_classes > 1
    multiple = known.optimizer in MULTIPLES and known.num_examples is not None
    if seen.kind == "gradient" or not missing or not classes or not multiple:
        return None
    try:
        head = find_head(task.build())
        if head.weight in seen.received and read(seen.update()[head.weight]).signs:
            return None  # Adam's first step
        length = told_length(seen, task, rng)
    except CannotAttack:
        return None
    rate = known.learning_rate
    steps = known.local_steps or (1 if rate is None else max(1, round(length / rate)))
    rate = rate or length / steps
    facts = known.model_copy(update={"local_steps": steps, "learning_rate": rate})
    values = {"local_steps": f"{steps}", "learning_rate": f"{rate:.2g}"}
    taken = " and ".join(f"{fact}={values[fact]}" for fact in missing)
    verb = "was" if len(missing) == 1 else "were"
    said = (
        f"{taken} {verb} taken, as the last layer's bias tells how long all local steps are "
        f"together; pass {' and '.join(missing)} (--knows {missing[0]}=VALUE) where the server "
        "knows better"
    )
    return replace(seen, knowledge=facts), said
