"""What an attacker makes of the defense that the client declared."""

from __future__ import annotations

from dataclasses import replace

from attacks.low_rank import shrink
from attacks.matching import Objective
from fedsim.capture import Observation
from fedsim.defenses import build_chain
from fedsim.defenses.chain import Chain
from fedsim.errors import CannotAttack
from fedsim.types import Tensors

_NOISY = {"gaussian_noise", "dp_sgd"}
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
    """The distance that fits what the declared defense leaves: signs, or the largest coordinates.

    Signs of a batch of several sentences take ``tanh``. Those of one sentence are compared as they
    are: by cosine more tokens came back than by ``hinge`` or ``tanh`` (.73, .63 and .58 of those of
    six phrases on the built-in BERT, mean of two seeds).
    """
    names = declared(observation).names
    if "sign" in names:
        several = observation.knowledge.num_examples != 1
        return replace(objective, form="tanh") if several else objective
    return replace(objective, form="support") if "prune" in names else objective


def denoised(gradient: Tensors, weights: frozenset[str], observation: Observation) -> Tensors:
    """The gradient with declared Gaussian noise taken off its ``weights``, which have low rank."""
    if not _NOISY & set(declared(observation).names):
        return gradient
    return {
        name: shrink(value) if name in weights and min(value.shape) >= _SMALLEST else value
        for name, value in gradient.items()
    }
