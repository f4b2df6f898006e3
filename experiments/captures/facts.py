"""The facts that an attacker knows besides the tensors, as a program states them."""

from collections.abc import Mapping
from typing import Any

import torch
from pydantic import ValidationError

from fedsim.config.build import explain, suggest
from fedsim.errors import ConfigError
from fedsim.knowledge import PASSED, Knowledge
from fedsim.tasks.base import Task

_TARGETS = {
    "classes": "several classes an example",
    "numbers": "numbers and no classes",
    "none": "not used by its loss",
}


def facts_of(task: Task, knows: Mapping[str, Any]) -> Knowledge:
    """The facts, checked; all that are not named are withheld.

    Raises:
        ConfigError: a fact does not exist, or its value cannot be.
    """
    for fact in knows:
        if fact not in PASSED:
            raise ConfigError(f"knows: {fact!r} is no fact. {suggest(fact, PASSED)}")
    facts = {fact: _plain(value) for fact, value in knows.items()}
    if facts.get("labels") is not None and task.spec.target != "class":
        raise ConfigError(
            f"labels: the targets of {task.spec.model} are {_TARGETS[task.spec.target]}, which "
            "cannot be passed. Leave out labels; those of one example are read off the update."
        )
    if facts.get("labels") is not None:
        facts["labels"] = sorted(facts["labels"])
        facts.setdefault("num_examples", len(facts["labels"]))
    try:
        known = Knowledge.model_validate(facts)
    except ValidationError as error:
        raise ConfigError(explain(error, "knows")) from None
    _check(known, task.spec.num_classes)
    return known


def _plain(value: Any) -> Any:  # noqa: ANN401
    return value.tolist() if isinstance(value, torch.Tensor) or hasattr(value, "dtype") else value


def _check(known: Knowledge, classes: int) -> None:
    labels, count = known.labels or (), known.num_examples
    if any(not 0 <= label < classes for label in labels):
        raise ConfigError(
            f"labels: {labels} are not all classes of the model, which has {classes}. "
            "Leave out labels, or pass the model that the clients train."
        )
    if count is not None and (count < 1 or (labels and len(labels) != count)):
        raise ConfigError(
            f"num_examples: {count} cannot be, with {len(labels)} labels given. "
            "Pass the number of examples in the update, at least 1."
        )
    if known.learning_rate is not None and not known.learning_rate > 0:
        raise ConfigError(f"lr: {known.learning_rate} is not positive. Leave it out if unknown.")
