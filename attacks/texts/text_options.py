"""The options that DLG, TAG and LAMP share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, TypeAlias

from pydantic import Field

from attacks.base import Attack, Grouping
from attacks.texts.hypotheses import LabelSource
from attacks.texts.matching import Distance, TextForm
from fedsim.defenses.base import Distortion
from fedsim.knowledge import Fact

Discrete: TypeAlias = Literal["alternate", "end", "none"]


@dataclass(frozen=True)
class TextOptions(Attack):
    """The options of a text search.

    Attributes:
        distance: ``cosine``, ``l2`` or ``l2l1``.
        alpha_l1: weight of L1 in ``l2l1``.
        form: for pruned updates and signs, see ``TextObjective``; ``adaptive`` replaces ``plain``
            by the form that suits the declared defense.
        steps: number of optimiser steps.
        learning_rate: learning rate at the start.
        optimizer: ``adamw`` has epsilon 1e-6 and weight decay 0.01.
        decay: ``step`` multiplies the rate by ``gamma`` every ``decay_every`` steps; ``linear``
            reaches 0 after ``decay_every`` steps.
        decay_every: number of steps, see ``decay``.
        gamma: factor of the rate, see ``decay``.
        clip: largest gradient norm of a lane; 0 for no clipping.
        starts: number of random embeddings, and then of their orders, of which the best is taken.
        restarts: number of searches for one victim, of which the best counts.
        alpha_reg: weight of ``(mean norm of the guess - mean norm of the vocabulary)^2``.
        alpha_lm: weight of the language prior's loss, in nats per token.
        prior: hub id or folder of a causal language model over the same vocabulary; empty for none.
        discrete: when to try other orders: ``alternate`` with the steps, at the ``end``, or never.
        discrete_every: steps between two rounds; the first is after a tenth of the steps.
        proposals: number of orders tried for each sentence in a round.
        substitutions: number of texts tried at the end, each of which has one word replaced, moved
            or both, see ``substituted``; 0, as in the papers, for none.
        labels: ``auto`` takes the granted labels or infers them from the head; ``enumerate`` tries
            all; ``joint`` searches for them as DLG does, best with L2 and several restarts. The
            targets of a language model follow from the words, unless ``joint``, as in TAG.
        hypotheses: most combinations of unknown lengths and labels tried; they compete for the
            first tenth of the steps.
        tokens: ``rows`` guesses only tokens whose row of the word gradient moved (FILM, 2022);
            ``span`` only those that the first layer's gradient makes likely, which the attack of
            that name decodes, with the embeddings frozen and under noise as well.
        layers: parts of parameter names; only gradients whose name contains one are compared. Empty
            for all.
        surrogate: ``sme`` for FedAvg of several steps, see ``SurrogateModel``.
        lanes: number of guesses that share a pass; bounds the memory.
        adaptive: use the declared defense: compare signs or the observed support, remove noise.
    """

    requires: ClassVar[frozenset[Fact]] = frozenset({"num_examples"})
    modalities: ClassVar[frozenset[Literal["image", "text"]]] = frozenset({"text"})
    grouping: ClassVar[Grouping] = "same_weights"
    rescales: ClassVar[bool] = True
    """Whether a start gets the mean norm of the vocabulary, as LAMP's does and TAG's does not."""
    uses: ClassVar[frozenset[Distortion] | None] = frozenset({"scale", "noise", "sparsity", "sign"})

    distance: Distance = "cosine"
    alpha_l1: Annotated[float, Field(ge=0)] = 0.01
    form: TextForm = "plain"
    steps: Annotated[int, Field(ge=1)] = 2000
    learning_rate: Annotated[float, Field(gt=0)] = 0.01
    optimizer: Literal["adam", "adamw"] = "adam"
    decay: Literal["step", "linear", "none"] = "step"
    decay_every: Annotated[int, Field(ge=1)] = 50
    gamma: Annotated[float, Field(gt=0, le=1)] = 0.89
    clip: Annotated[float, Field(ge=0)] = 0.0
    starts: Annotated[int, Field(ge=1)] = 500
    restarts: Annotated[int, Field(ge=1)] = 1
    alpha_reg: Annotated[float, Field(ge=0)] = 1.0
    alpha_lm: Annotated[float, Field(ge=0)] = 0.2
    prior: str = ""
    discrete: Discrete = "alternate"
    discrete_every: Annotated[int, Field(ge=1)] = 75
    proposals: Annotated[int, Field(ge=2)] = 200
    substitutions: Annotated[int, Field(ge=0)] = 0
    labels: LabelSource = "auto"
    hypotheses: Annotated[int, Field(ge=1)] = 16
    tokens: Literal["vocabulary", "rows", "span"] = "vocabulary"
    layers: tuple[str, ...] = ()
    surrogate: Literal["none", "sme"] = "none"
    lanes: Annotated[int, Field(ge=1)] = 32
    adaptive: bool = False
