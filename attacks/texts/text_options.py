"""The options that DLG, TAG and LAMP share."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, TypeAlias

from pydantic import Field

from attacks.base import Attack, Grouping
from attacks.texts.matching import Distance
from fedsim.defenses.base import Distortion
from fedsim.knowledge import Fact

Discrete: TypeAlias = Literal["alternate", "end", "none"]


@dataclass(frozen=True)
class TextOptions(Attack):
    """The options of a text search.

    Attributes:
        distance: ``cosine``, ``l2`` or ``l2l1``, see ``TextObjective``.
        steps: number of optimiser steps.
        learning_rate: learning rate at the start.
        decay_every: number of steps after which LAMP's rate falls to .89 of what it was.
        starts: number of random embeddings, and then of their orders, of which the best is taken.
        alpha_reg: weight of ``(mean norm of the guess - mean norm of the vocabulary)^2``.
        alpha_lm: weight of the language prior's loss, in nats per token.
        prior: hub id or folder of a causal language model over the same vocabulary; empty for none.
        discrete: when to try other orders: ``alternate`` with the steps, at the ``end``, or never.
        discrete_every: steps between two rounds; the first is after a tenth of the steps.
        proposals: number of orders tried for each sentence in a round.
        substitutions: number of texts tried at the end, each of which has one word replaced, moved
            or both, see ``substituted``; 0, as in the papers, for none.
        layers: parts of parameter names; only gradients whose name contains one are compared. Empty
            for all.
        adaptive: use the declared defense: compare signs or the observed support, remove noise.
    """

    requires: ClassVar[frozenset[Fact]] = frozenset({"num_examples"})
    modalities: ClassVar[frozenset[Literal["image", "text"]]] = frozenset({"text"})
    grouping: ClassVar[Grouping] = "same_weights"
    refined: ClassVar[bool] = True
    """Whether a start gets the vocabulary's mean norm and the rate falls: LAMP's, not TAG's."""
    uses: ClassVar[frozenset[Distortion] | None] = frozenset({"scale", "noise", "sparsity", "sign"})

    distance: Distance = "cosine"
    steps: Annotated[int, Field(ge=1)] = 2000
    learning_rate: Annotated[float, Field(gt=0)] = 0.01
    decay_every: Annotated[int, Field(ge=1)] = 50
    starts: Annotated[int, Field(ge=1)] = 500
    alpha_reg: Annotated[float, Field(ge=0)] = 1.0
    alpha_lm: Annotated[float, Field(ge=0)] = 0.2
    prior: str = ""
    discrete: Discrete = "alternate"
    discrete_every: Annotated[int, Field(ge=1)] = 75
    proposals: Annotated[int, Field(ge=2)] = 200
    substitutions: Annotated[int, Field(ge=0)] = 0
    layers: tuple[str, ...] = ()
    adaptive: bool = False
