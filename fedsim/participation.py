"""Random draws of a round: the clients that take part, and the cohorts that are summed."""

from collections.abc import Sequence

import torch

from fedsim.config.federation import FederationConfig
from fedsim.seeds import numpy_generator
from fedsim.types import Tensors


def draw(seed: int, round_: int, clients: int, share: float) -> list[int]:
    """Clients drawn for a round, ascending: a share of all clients, at least one."""
    count = max(1, round(share * clients))
    rng = numpy_generator(seed, "participation", round_)
    return sorted(rng.choice(clients, size=count, replace=False).tolist())


def cohorts(seed: int, round_: int, drawn: Sequence[int], size: int) -> list[tuple[int, ...]]:
    """Random split of the clients of a round into cohorts of ``size``, each ascending.

    Raises:
        ValueError: ``size`` does not divide the number of clients.
    """
    if len(drawn) % size:
        raise ValueError(f"{len(drawn)} clients cannot be split into cohorts of {size}")
    rng = numpy_generator(seed, "cohorts", round_)
    order: list[int] = rng.permutation(sorted(drawn)).tolist()
    return [tuple(sorted(order[i : i + size])) for i in range(0, len(order), size)]


def cohort_of(config: FederationConfig, seed: int, round_: int, client: int) -> int | None:
    """Number of the client's cohort in a round; None without secure aggregation."""
    if config.cohort == 1:
        return None
    split = cohorts_of(config, seed, round_)
    return next(number for number, members in enumerate(split) if client in members)


def cohorts_of(config: FederationConfig, seed: int, round_: int) -> list[tuple[int, ...]]:
    """The cohorts of a round; where they are fixed, those of the first."""
    drawn = draw(seed, round_, config.clients, config.participation)
    return cohorts(seed, 1 if config.cohorts == "fixed" else round_, drawn, config.cohort)


def mean(parts: Sequence[Tensors], shares: Sequence[float]) -> Tensors:
    """``sum_i share_i * tensor_i`` in float64, returned in the dtype of the first part.

    Integer tensors are rounded to the nearest integer.
    """
    averaged: Tensors = {}
    for name, first in parts[0].items():
        total = torch.zeros(first.shape, dtype=torch.float64)
        for part, share in zip(parts, shares, strict=True):
            total += share * part[name].double()
        whole = total if first.is_floating_point() else total.round()
        averaged[name] = whole.to(first.dtype)
    return averaged
