"""Facts about an update that the threat model grants to the server besides the tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeAlias, TypeVar, get_args

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer

from fedsim.store.files import Record

Fact: TypeAlias = Literal[
    "labels",
    "num_examples",
    "all_rows",
    "lengths",
    "batch_size",
    "local_steps",
    "learning_rate",
    "optimizer",
    "train_mode",
    "training",
    "defense",
    "auxiliary",
]
Source: TypeAlias = Literal["stated", "counted", "claimed", "inferred", "tried"]
"""Whence a fact is, the surest first: the server or whoever attacks states it; layers of the reply
counted it; the client claims it; numbers of the reply show an interval that holds it; or a value is
tried, as nothing tells it."""
T = TypeVar("T")
FACTS: tuple[Fact, ...] = get_args(Fact)
SOURCES: tuple[Source, ...] = get_args(Source)
PASSED = tuple(fact for fact in FACTS if fact not in ("auxiliary", "all_rows"))
"""Those that can be said of an update without a run: the others are of stored rows and rounds."""
MULTIPLES = frozenset({None, "sgd", "momentum"})
"""Optimisers whose first step is a multiple of the gradient, None if that is not known. The others
divide each coordinate by its size: the first step of Adam is a sign, that of Adafactor has it."""


class Origin(Record):
    """Whence a fact is that was not stated.

    Attributes:
        source: how sure it is.
        low: least value that the reply allows, of an inferred number; None of others.
        high: largest such value.
    """

    source: Source
    low: float | None = None
    high: float | None = None


class Knowledge(Record):
    """Facts granted to the server; None, or False for ``auxiliary``, if a fact is withheld.

    Under secure aggregation the facts are those of the cohort: examples, labels and lengths are
    pooled over its clients, while batch size and steps are those of each client.

    Attributes:
        labels: classes of the client's examples, sorted, which hides their order.
        num_examples: number of examples that the client used in this round.
        all_rows: whether these are all the examples that the client owns, and hence the same ones
            in every round of which this is true.
        lengths: number of real tokens of each example, special tokens included, sorted.
        batch_size: number of examples in a local step.
        local_steps: number of optimiser steps of the client in this round; 1 under FedSGD.
        learning_rate: step size of the client; the mean over its steps where a schedule changes it.
        optimizer: ``sgd``, ``momentum``, ``adam``, ``adamw`` or ``adafactor``.
        train_mode: whether dropout and batch statistics were active while the client trained.
        training: other options of local training by name, such as ``precision``,
            ``label_smoothing`` and ``max_grad_norm`` (``FederationConfig.training``).
        defense: the client's chain of defenses, as tables of name and options.
        auxiliary: whether the server owns the rows stored beside the captures.
        cohort: number of clients whose updates the reply averages, weighted by their numbers of
            examples; 1 without secure aggregation.
        members: numbers of these clients, ascending, which the server drew itself; empty for one.
        origins: of the facts that nobody stated, whence they are.

    Example:
        A server that knows how many examples there are, and nothing else:

        >>> from fedsim.knowledge import Knowledge
        >>> facts = Knowledge(num_examples=8)
        >>> facts.num_examples, facts.labels
        (8, None)
    """

    labels: tuple[int, ...] | None = None
    num_examples: int | None = None
    all_rows: bool | None = None
    lengths: tuple[int, ...] | None = None
    batch_size: int | None = None
    local_steps: int | None = None
    learning_rate: float | None = None
    optimizer: str | None = None
    train_mode: bool | None = None
    training: dict[str, Any] | None = None
    defense: tuple[dict[str, Any], ...] | None = None
    auxiliary: bool = False
    cohort: int = 1
    members: tuple[int, ...] = ()
    origins: dict[Fact, Origin] = Field(default_factory=dict)

    def missing(self, facts: frozenset[Fact], source: Source = "tried") -> list[Fact]:
        """The facts among ``facts`` that are open or denied, or less sure than ``source``."""
        return [
            fact
            for fact in FACTS
            if fact in facts and not (getattr(self, fact) is not False and self.has(fact, source))
        ]

    def has(self, fact: Fact, source: Source = "tried") -> bool:
        """Whether a fact is known as surely as from ``source``."""
        return self.rank(fact) <= SOURCES.index(source)

    def rank(self, fact: Fact) -> int:
        """Place of a fact's source in ``SOURCES``, behind all for an open one."""
        value = getattr(self, fact)
        if value is None or (fact == "auxiliary" and not value):
            return len(SOURCES)
        origin = self.origins.get(fact)
        return 0 if origin is None else SOURCES.index(origin.source)

    def adding(self, facts: Mapping[Fact, Any], origin: Origin) -> Knowledge:
        """With facts that nobody stated; none stands in for one of a source as sure."""
        weaker = {f: v for f, v in facts.items() if SOURCES.index(origin.source) < self.rank(f)}
        origins = {**self.origins, **dict.fromkeys(weaker, origin)}
        changes = {str(fact): value for fact, value in weaker.items()}
        return self.model_copy(update=changes | {"origins": origins})

    @classmethod
    def pooled(cls, parts: Sequence[Knowledge], members: Sequence[int] = ()) -> Knowledge:
        """Facts granted about a cohort, from those granted about each of its clients, ``members``.

        Pooled labels and lengths are sorted, so that they do not reveal whose they are. A fact in
        which clients differ, such as the number of steps, is withheld.
        """
        same = {fact: _agreed([getattr(part, fact) for part in parts]) for fact in FACTS}
        pooled = {
            "num_examples": _pooled([part.num_examples for part in parts], sum),
            "labels": _pooled([part.labels for part in parts], _merged),
            "lengths": _pooled([part.lengths for part in parts], _merged),
        }
        whole = {"cohort": len(parts), "members": tuple(members)}
        return cls.model_validate({**same, **pooled, **whole})

    @model_serializer(mode="wrap")
    def _written(self, written: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Without members and origins where there are none, as 0.2.0 wrote and sealed records."""
        fields: dict[str, Any] = written(self)
        empty = {name for name in ("members", "origins") if not getattr(self, name)}
        return {name: value for name, value in fields.items() if name not in empty}


def _agreed(values: Sequence[object]) -> object:
    return values[0] if all(value == values[0] for value in values) else None


def _pooled(values: Sequence[T | None], pool: Callable[[Sequence[T]], object]) -> object:
    known = [value for value in values if value is not None]
    return pool(known) if len(known) == len(values) else None


def _merged(values: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    return tuple(sorted(number for value in values for number in value))
