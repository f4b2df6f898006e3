"""Removal of declared noise and rounding from gradients whose rank is low."""

from __future__ import annotations

import math
from dataclasses import replace

from attacks.observed.declared import declared, granted_noise
from attacks.observed.local_steps import LocalSteps
from attacks.texts.cuts import CUTS
from attacks.texts.low_rank import shrink
from fedsim.capture import Observation
from fedsim.defenses.chain import Chain
from fedsim.types import Tensors


def denoised(
    gradient: Tensors,
    weights: frozenset[str],
    observation: Observation,
    rank: int,
    length: float = 1.0,
) -> Tensors:
    """The gradient with declared noise and rounding removed from its ``weights``.

    A weight gradient of few tokens has low rank, so that singular values below the noise edge are
    noise (``attacks.texts.low_rank``). Zeros of a pruned update stay zeros. If the amount of noise
    is unknown, it is measured; weights whose rank may be too high to measure it stay as they are.

    Args:
        gradient: the update divided by ``length``, float64.
        weights: names of the gradients that are sums of one outer product per token and step.
        observation: the client's update and declared facts.
        rank: number of tokens over all local steps.
        length: of the step, see ``attacks.observed.replay.step_length``.
    """
    chain = declared(observation)
    if not {"noise", "rounding"} & chain.distortions:
        return gradient
    pruned = "sparsity" in chain.distortions
    noise = _noise(chain, observation)
    slack = chain.slack({name: length * gradient[name] for name in weights & gradient.keys()})
    clean = gradient.copy()
    for name, bound in slack.items():
        value = gradient[name]
        side = min(value.shape)
        if side < CUTS.denoised_side or (noise is None and 2 * rank > side):
            continue
        # An error that is uniform within +-s has the variance s^2 / 3.
        rounding = float(bound.square().mean()) / 3
        most = math.inf if noise is None else (noise + rounding) / length**2
        shrunk = shrink(value, most)
        clean[name] = shrunk.where(value != 0, 0) if pruned else shrunk
    return clean


def _noise(chain: Chain, observation: Observation) -> float | None:
    """Variance of the noise in each coordinate of the update; None if it is unknown.

    It is unknown, for example, where it depends on the update: then an update of zeros gets none.
    """
    known, lost = observation.knowledge, chain.distortions
    if "sign" in lost or ("rounding" in lost and known.cohort > 1):
        return None
    total = 0.0
    for defense, table in zip(chain.defenses, chain.tables, strict=True):
        if "noise" in defense.distortions:
            alone = replace(observation, knowledge=known.model_copy(update={"defense": (table,)}))
            variance = _of_steps(alone) if defense.per_example else (granted_noise(alone) or 0) ** 2
            if not variance:
                return None
            total += CUTS.noise_margin * variance
    return total


def _of_steps(observation: Observation) -> float | None:
    """``_noise`` of a per-example defense, which adds noise in every local step."""
    known, steps = observation.knowledge, LocalSteps.of(observation)
    rate = known.learning_rate if known.optimizer == "sgd" else None
    rate = 1.0 if observation.kind == "gradient" else rate
    if steps is None or rate is None:
        return None
    total = 0.0
    for rows, count in steps.batches:
        size = {"num_examples": known.cohort * (rows.stop - rows.start)}
        alone = replace(observation, kind="gradient", knowledge=known.model_copy(update=size))
        total += count * (rate * (granted_noise(alone) or 0)) ** 2
    return total
