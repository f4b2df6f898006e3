"""Local training that nobody stated, taken for one step of a length that the update tells."""

from dataclasses import replace

import torch

from attacks.observed.labels import find_head, told_length
from attacks.observed.readings import read
from fedsim.errors import CannotAttack
from fedsim.knowledge import FACTS, MULTIPLES, Fact, Knowledge, Origin
from fedsim.store.capture import Observation
from fedsim.tasks.base import Task

STEPS: frozenset[Fact] = frozenset({"learning_rate", "local_steps"})


_OFF = (0.6, 1.25)
"""The length that a head's bias tells, as a share of the true one, in 8 of 10 trials; see
``told_length``. Of five other networks after three steps, three were inside; under Adam none is."""


def with_steps(seen: Observation, task: Task, rng: torch.Generator) -> Observation | None:
    """The observation with the facts that it lacks about its steps.

    All steps together count as one along the mean gradient, as where they are known. Their length
    is told by the head's bias. Where the learning rate is known, the length tells the steps.

    Returns:
        None where both facts are known, or nothing tells the length: the head has no bias, the
        targets are no classes, or the optimizer sends no multiple of a gradient.
    """
    known = seen.knowledge
    classes = task.spec.target == "class" and task.spec.num_classes > 1
    multiple = known.optimizer in MULTIPLES and known.num_examples is not None
    if seen.kind == "gradient" or not known.missing(STEPS) or not classes or not multiple:
        return None
    try:
        head = find_head(task.build())
        if head.weight in seen.received and read(seen.update()[head.weight]).signs:
            return None  # Adam's first step
        length = told_length(seen, task, rng)
    except CannotAttack:
        return None
    rate = known.learning_rate
    if rate is None:
        known = known.adding({"local_steps": 1}, Origin(source="tried"))
        facts: dict[Fact, float] = {"learning_rate": length / (known.local_steps or 1)}
    else:
        facts = {"local_steps": max(1, round(length / rate))}
    (value,) = facts.values()
    origin = Origin(source="inferred", low=value / _OFF[1], high=value / _OFF[0])
    return replace(seen, knowledge=known.adding(facts, origin))


def taken(known: Knowledge) -> str:
    """A clause on the facts that ``with_steps`` added; empty where it added none."""
    added = [fact for fact in FACTS if fact in STEPS and not known.has(fact, "claimed")]
    if not added or known.missing(STEPS):
        return ""
    values = {"local_steps": f"{known.local_steps}", "learning_rate": f"{known.learning_rate:.2g}"}
    said = " and ".join(f"{fact}={values[fact]}{_interval(known.origins[fact])}" for fact in added)
    verb = "was" if len(added) == 1 else "were"
    return (
        f"{said} {verb} taken, as the last layer's bias tells how long all local steps are "
        f"together; pass {' and '.join(added)} (--knows {added[0]}=VALUE) where the server "
        "knows better"
    )


def _interval(origin: Origin) -> str:
    return "" if origin.low is None else f" (mostly {origin.low:.2g} to {origin.high:.2g})"
