"""What an attacker makes of the defense that the client declared."""

from __future__ import annotations

from dataclasses import replace

from attacks.texts.low_rank import shrink
from attacks.texts.matching import Objective
from fedsim.capture import Observation
from fedsim.defenses import build_chain
from fedsim.defenses.chain import Chain
from fedsim.errors import CannotAttack
from fedsim.types import Tensors

_SMALLEST = 32
"""Rows and columns below which singular values tell nothing of the noise."""


def declared(observation: Observation) -> Chain:
    """The client's defenses.

    Raises:
        CannotAttack: the server does not know them.
    """
    if observation.knowledge.defense is None:
        raise CannotAttack(
            f"{observation.key}: an adaptive attack needs the client's defense, which the server "
            "does not know. Grant server_knows.defense, or set adaptive = false."
        )
    return build_chain(observation.knowledge.defense, "server_knows.defense")


def adapted(objective: Objective, observation: Observation) -> Objective:
    """The distance that fits what the declared defense leaves, by its ``distortions``.

    Zeros are left out, and where the length was cut, sums of differences make way for the cosine.
    Signs of a batch of several sentences take ``tanh``. Those of one sentence are compared as they
    are: by cosine more tokens came back than by ``hinge`` or ``tanh`` (.73, .63 and .58 of those of
    six phrases on the built-in BERT, mean of two seeds).
    """
    lost = declared(observation).distortions
    if "sign" in lost:
        several = observation.knowledge.num_examples != 1
        return replace(objective, form="tanh") if several else objective
    if "scale" in lost and not objective.is_mean:
        objective = replace(objective, distance="cosine")
    return replace(objective, form="support") if "sparsity" in lost else objective


def denoised(gradient: Tensors, weights: frozenset[str], observation: Observation) -> Tensors:
    """The gradient with declared noise and rounding taken off its ``weights``, of low rank."""
    if not {"noise", "rounding"} & declared(observation).distortions:
        return gradient
    return {
        name: shrink(value) if name in weights and min(value.shape) >= _SMALLEST else value
        for name, value in gradient.items()
    }
