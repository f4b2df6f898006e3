"""What the threat model lets the server know beside the messages themselves."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias, get_args

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

    def missing(self, facts: frozenset[Fact]) -> list[Fact]:
        """The facts among ``facts`` that are not granted."""
        return [fact for fact in FACTS if fact in facts and getattr(self, fact) in (None, False)]
