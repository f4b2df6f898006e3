"""The options that DLG, TAG and LAMP share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, TypeAlias

from pydantic import Field

from attacks.base import Attack, Grouping
from attacks.texts.hypotheses import LabelSource
from attacks.texts.matching import Distance, TextForm
from fedsim.knowledge import Fact

Discrete: TypeAlias = Literal["alternate", "end", "none"]


@dataclass(frozen=True)
class TextOptions(Attack):
    """How a text is searched for.

    Attributes:
        distance: ``cosine``, ``l2`` or ``l2l1``.
        alpha_l1: weight of L1 in ``l2l1``.
        form: for pruned updates and signs, see ``Objective``; ``adaptive`` chooses it where it is
            ``plain``.
        steps: of the optimiser.
        learning_rate: at the start.
        optimizer: ``adamw`` has epsilon 1e-6 and weight decay 0.01.
        decay: ``step`` multiplies the rate by 0.89 every ``decay_every`` steps; ``linear`` goes to
            0 after ``decay_every`` steps.
        decay_every: steps.
        clip: largest norm of a lane's slope; 0 for none.
        starts: random embeddings, and then orders of them, of which the best is taken.
        rescale: give each start the norms of the vocabulary.
        restarts: searches of one victim, the best of which counts.
        alpha_reg: weight of ``(mean norm of the guess - mean norm of the vocabulary)^2``.
        alpha_lm: weight of the language prior's loss, in nats a token.
        prior: hub id or folder of a causal language model over the same vocabulary; empty for none.
        discrete: try other orders in turn with the steps, at the ``end``, or not.
        discrete_every: steps between two rounds; the first is after a tenth of the steps.
        proposals: orders tried in a round for each sentence.
        labels: ``auto`` takes the granted labels, or reads them off the head; ``enumerate`` tries
            all; ``joint`` searches for them as DLG does, best with L2 and several restarts. Of a
            language model they follow from the words, unless they are ``joint``, as in TAG.
        hypotheses: most combinations of lengths and labels tried, where they are not known; they
            compete for the first tenth of the steps.
        tokens: ``rows`` guesses only tokens whose row of the word gradient moved (FILM, 2022).
        layers: parts of parameter names; only gradients with one of them are compared. Empty: all.
        surrogate: ``sme`` for FedAvg of several steps, see ``SurrogateModel``.
        lanes: guesses that share a pass; bounds the memory.
        adaptive: use the declared defense: compare signs or the observed support, take noise off.
    """

    requires: ClassVar[frozenset[Fact]] = frozenset({"num_examples"})
    modalities: ClassVar[frozenset[Literal["image", "text"]]] = frozenset({"text"})
    grouping: ClassVar[Grouping] = "same_weights"

    distance: Distance = "cosine"
    alpha_l1: Annotated[float, Field(ge=0)] = 0.01
    form: TextForm = "plain"
    steps: Annotated[int, Field(ge=1)] = 2000
    learning_rate: Annotated[float, Field(gt=0)] = 0.01
    optimizer: Literal["adam", "adamw"] = "adam"
    decay: Literal["step", "linear", "none"] = "step"
    decay_every: Annotated[int, Field(ge=1)] = 50
    clip: Annotated[float, Field(ge=0)] = 0.0
    starts: Annotated[int, Field(ge=1)] = 500
    rescale: bool = True
    restarts: Annotated[int, Field(ge=1)] = 1
    alpha_reg: Annotated[float, Field(ge=0)] = 1.0
    alpha_lm: Annotated[float, Field(ge=0)] = 0.2
    prior: str = ""
    discrete: Discrete = "alternate"
    discrete_every: Annotated[int, Field(ge=1)] = 75
    proposals: Annotated[int, Field(ge=2)] = 200
    labels: LabelSource = "auto"
    hypotheses: Annotated[int, Field(ge=1)] = 16
    tokens: Literal["vocabulary", "rows"] = "vocabulary"
    layers: tuple[str, ...] = ()
    surrogate: Literal["none", "sme"] = "none"
    lanes: Annotated[int, Field(ge=1)] = 32
    adaptive: bool = False
