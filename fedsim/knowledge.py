"""What the threat model lets the server know beside the messages themselves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias, TypeVar, get_args

from fedsim.files import Record

Fact: TypeAlias = Literal[
    "labels",
    "num_examples",
    "lengths",
    "batch_size",
    "local_steps",
    "learning_rate",
    "optimizer",
    "train_mode",
    "defense",
    "auxiliary",
]
T = TypeVar("T")
FACTS: tuple[Fact, ...] = get_args(Fact)


class Knowledge(Record):
    """Facts granted to the server. ``None`` (``False`` for ``auxiliary``): it does not know.

    Attributes:
        labels: classes of the client's examples, in no particular order.
        num_examples: how many examples the client used in this round.
        lengths: real tokens of each example, special tokens included, in no particular order.
        batch_size: examples in one local step.
        local_steps: optimiser steps of the client in this round; 1 under FedSGD.
        learning_rate: the client's step size.
        optimizer: ``sgd``, ``momentum``, ``adam`` or ``adamw``.
        train_mode: whether the client trained with dropout and batch statistics on.
        defense: the client's chain of defenses, as tables of name and options.
        auxiliary: whether the server owns the rows stored beside the captures.
        cohort: how many clients' updates the reply is the mean of, by their numbers of examples.
            Under secure aggregation the other facts are those of the cohort: examples are all of
            its clients', while batch size and steps are those of each client.
    """

    labels: tuple[int, ...] | None = None
    num_examples: int | None = None
    lengths: tuple[int, ...] | None = None
    batch_size: int | None = None
    local_steps: int | None = None
    learning_rate: float | None = None
    optimizer: str | None = None
    train_mode: bool | None = None
    defense: tuple[dict[str, Any], ...] | None = None
    auxiliary: bool = False
    cohort: int = 1

    def missing(self, facts: frozenset[Fact]) -> list[Fact]:
        """The facts among ``facts`` that are not granted."""
        return [fact for fact in FACTS if fact in facts and getattr(self, fact) in (None, False)]

    @classmethod
    def pooled(cls, parts: Sequence[Knowledge]) -> Knowledge:
        """What is granted of a cohort, from what is granted of each of its clients.

        Labels and lengths are sorted, so that nothing tells whose they are. A fact in which the
        clients differ, as in their numbers of steps, is no fact of the cohort.
        """
        same = {fact: _agreed([getattr(part, fact) for part in parts]) for fact in FACTS}
        pooled = {
            "num_examples": _pooled([part.num_examples for part in parts], sum),
            "labels": _pooled([part.labels for part in parts], _merged),
            "lengths": _pooled([part.lengths for part in parts], _merged),
        }
        return cls.model_validate({**same, **pooled, "cohort": len(parts)})


def _agreed(values: Sequence[object]) -> object:
    return values[0] if all(value == values[0] for value in values) else None


def _pooled(values: Sequence[T | None], pool: Callable[[Sequence[T]], object]) -> object:
    known = [value for value in values if value is not None]
    return pool(known) if len(known) == len(values) else None


def _merged(values: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    return tuple(sorted(number for value in values for number in value))
