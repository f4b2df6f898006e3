"""The declared training and defense of a client, as an attacker can use them."""

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import nn

from attacks.base import Reconstruction
from fedsim.config.federation import FederationConfig
from fedsim.defenses import build_chain
from fedsim.defenses.chain import Chain
from fedsim.errors import CannotAttack, ConfigError
from fedsim.local.steps import nominal_rate
from fedsim.records import Certificate
from fedsim.store.capture import Observation
from fedsim.types import Tensors

_UNPROVEN: Certificate = "guess"
_DRAWS = 4096
"""Coordinates on which the noise of a granted defense is measured."""


def declared(observation: Observation) -> Chain:
    """The client's defenses.

    Raises:
        CannotAttack: the server does not know them.
    """
    if observation.knowledge.defense is None:
        raise CannotAttack(
            "an adaptive attack needs the client's defense, which the server does not know",
            "Without it, set adaptive = false.",
            ("defense",),
        )
    return build_chain(observation.knowledge.defense, "server_knows.defense")


def recovered(
    defended: Reconstruction, observation: Observation, network: nn.Module
) -> Reconstruction:
    """What the declared defense changed into the guessed examples, which proves nothing of it."""
    chain = declared(observation)
    if "inputs" not in chain.distortions:
        return defended
    guess = chain.recover(defended.guess, network)
    return replace(defended, guess=guess, confidence=(_UNPROVEN,) * len(guess))


def declared_training(observation: Observation) -> FederationConfig:
    """The client's local training; options that are not granted have their defaults.

    The granted learning rate is the mean over the steps, from which that of ``[federation]``
    follows. A schedule over rounds is constant within one.

    Raises:
        CannotAttack: there is an option that this version does not have, by whose name it is
            refused.
    """
    known = observation.knowledge
    training = dict(known.training or {})
    if foreign := sorted(training.keys() - FederationConfig.model_fields.keys()):
        raise unreplayed({name: training[name] for name in foreign})
    facts = ("batch_size", "local_steps", "optimizer", "learning_rate", "train_mode")
    granted = {fact: value for fact in facts if (value := getattr(known, fact)) is not None}
    protocol = "fedsgd" if observation.kind == "gradient" else "fedavg"
    if training.get("schedule_over") == "rounds":
        training |= {"schedule": "constant", "warmup_steps": 0}
    config = FederationConfig().model_copy(update={"protocol": protocol, **granted, **training})
    if not known.local_steps or not known.learning_rate:
        return config
    rate = nominal_rate(config, known.learning_rate, known.local_steps)
    return config.model_copy(update={"learning_rate": rate})


def update_of(chain: Chain, mean: Tensors, length: float, rng: torch.Generator) -> Tensors:
    """A mean gradient as it arrives, after the defenses of an update of that step length."""
    if not chain.changes_update:
        return mean
    update = chain.on_update({name: value * length for name, value in mean.items()}, rng)
    return {name: value / length for name, value in update.items()}


def unreplayed(options: Mapping[str, object]) -> CannotAttack:
    """The error of an attack that does not replay options of a client's local training."""
    said = ", ".join(f"{name} = {value!r}" for name, value in options.items())
    return CannotAttack(
        f"the client trained with {said}, which this attack does not replay",
        "Leave the option out, or choose an attack that does not replay the client.",
    )


def granted_noise(observation: Observation) -> float | None:
    """Standard deviation of what the granted defense adds to a coordinate; None if not known.

    The chain is run on an update of zeros, so that whatever comes out is noise, in the units of
    the update: ``sigma C / B`` for DP-SGD, where ``B`` is what the client drew, which may have
    fewer rows than the batch size; the mean of a cohort's has a root of the number of its clients
    less. It is not known for the weights of a client who adds noise in each local step, nor where a
    budget is granted and not its noise.
    """
    knowledge = observation.knowledge
    if knowledge.defense is None:
        return None
    chain = build_chain(knowledge.defense, "defense")
    rng = torch.Generator().manual_seed(0)
    update: Tensors = {"zeros": torch.zeros(_DRAWS)}
    count = knowledge.batch_size
    if knowledge.num_examples is not None:
        count = max(1, knowledge.num_examples // knowledge.cohort)
    if chain.per_example:
        if observation.kind != "gradient" or count is None:
            return None
        drawn = [chain.on_gradient(update, rng)["zeros"] for _ in range(count)]
        try:
            total = chain.on_sum({"zeros": torch.stack(drawn).sum(0)}, rng)
        except ConfigError:  # how much noise a budget takes depends on the client's rows
            return None
        update = {"zeros": total["zeros"] / count}
    try:
        sent = chain.on_update(update, rng)["zeros"]
    except ConfigError:  # nor does a budget of dp_client tell, which depends on the rounds
        return None
    return float((sent.square().mean() / knowledge.cohort).sqrt())
