"""Updates of shadow clients, who hold auxiliary rows and defend themselves as declared."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from attacks.observed.declared import declared, update_of
from attacks.observed.replay import Replay, step_length
from fedsim.capture import Observation
from fedsim.defenses.base import Step
from fedsim.defenses.chain import Chain
from fedsim.errors import CannotAttack, ConfigError
from fedsim.types import Batch, Tensors


def shadow_updates(
    model: Replay, seen: Observation, auxiliary: Batch, count: int, rng: torch.Generator
) -> Iterator[Tensors]:
    """Mean gradients of clients that draw as many auxiliary rows as the client used.

    Without a declared defense the shadows have none.

    Raises:
        CannotAttack: there are too few rows for two different batches, or the declared defense
            fits its noise to facts that the server does not know.
    """
    size = seen.knowledge.num_examples or 1
    if len(auxiliary) <= size:
        raise CannotAttack(
            f"shadow clients need more than {size} auxiliary rows, and there are {len(auxiliary)}",
            "Raise auxiliary.rows.",
        )
    chain = Chain() if seen.knowledge.defense is None else declared(seen)
    for _ in range(count):
        rows = auxiliary[torch.randperm(len(auxiliary), generator=rng)[:size]].to(_device(model))
        try:
            yield _sent(model, chain, rows, step_length(seen), rng)
        except ConfigError as error:
            raise CannotAttack(
                f"the noise of the declared defense is not known ({error})",
                "Declare noise_multiplier instead of epsilon, or choose another statistic.",
            ) from None


def _sent(model: Replay, chain: Chain, rows: Batch, length: float, rng: torch.Generator) -> Tensors:
    rows = chain.on_batch(rows, model.network, rng)
    if chain.per_example:
        mean = chain.mean((_gradient(model, rows[i]) for i in range(len(rows))), rng)
    else:
        mean = _gradient(model, rows)
    mean = chain.on_step(mean, Step(model.network, rows, model.task.loss), rng)
    return update_of(chain, mean, length, rng)


def _gradient(model: Replay, rows: Batch) -> Tensors:
    return {name: value.detach() for name, value in model.gradient(rows).items()}


def _device(model: Replay) -> torch.device:
    return next(iter(model.parameters.values())).device
