"""Partition of the private rows among the clients."""

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedsim import seeds
from fedsim.config.federation import FederationConfig
from fedsim.errors import ConfigError

Positions: TypeAlias = NDArray[np.int64]
ClassShares: TypeAlias = NDArray[np.float64]

ATTEMPTS = 100
"""Largest number of Dirichlet draws to find one in which every client has a row."""


def partition(labels: Tensor, clients: int, config: FederationConfig, seed: int) -> list[list[int]]:
    """Positions of each client's rows, ascending; no position belongs to two clients.

    - ``iid``: the shuffled rows are split evenly.
    - ``dirichlet``: for each class c the K clients' shares are drawn,
      ``p_c ~ Dir(alpha, ..., alpha)``, and its rows are split accordingly (Hsu et al. 2019, but
      over clients instead of classes, as in Li et al. 2022).
    - ``by-label``: each client gets ``classes_per_client`` classes in turn, and a class is split
      evenly among its owners; rows of a class without owner remain unused.

    With ``size_spread`` s each client has a weight ``w_k = exp(s z_k) / mean``, ``z_k ~ N(0, 1)``.
    Rows are then split by weight instead of evenly, and the Dirichlet concentrations are
    ``alpha w_k``.

    Args:
        labels: classes int64 ``(row,)``.
        clients: number of parts.
        config: kind of partition and its options.
        seed: seed of the cell.

    Raises:
        ConfigError: a client would have no row.
    """
    if clients > len(labels):
        raise ConfigError(
            f"federation.clients: {clients} clients cannot share {len(labels)} private rows. "
            f"Use at most {len(labels)} clients, or a longer task.split."
        )
    rng = seeds.numpy_generator(seed, "partition")
    classes, weights = labels.numpy(), _weights(clients, config.size_spread, seed)
    if config.partition == "dirichlet":
        parts = _dirichlet(classes, config.alpha * weights, rng)
    elif config.partition == "by-label":
        parts = _by_label(classes, weights, config.classes_per_client, rng)
    else:
        parts = _split(rng.permutation(len(labels)), weights)
    return [sorted(part.tolist()) for part in parts]


def _weights(clients: int, spread: float, seed: int) -> ClassShares:
    """Weight of each client, 1 on average."""
    drawn = seeds.numpy_generator(seed, "sizes").normal(0.0, spread, clients)
    weights: ClassShares = np.exp(drawn - drawn.max())
    weights /= weights.mean()
    return weights


def _split(positions: Positions, weights: ClassShares) -> list[Positions]:
    """Consecutive pieces in proportion to the weights, rounded to whole rows.

    No client may be empty, so each piece has at least one row if there are enough.
    """
    pieces = len(weights)
    if np.all(weights == weights[0]):
        return np.array_split(positions, pieces)
    least = min(1, len(positions) // pieces)
    shared = np.cumsum(weights) / weights.sum() * (len(positions) - least * pieces)
    cuts = np.round(shared).astype(int) + least * np.arange(1, pieces + 1)
    return np.split(positions, cuts[:-1])


def _dirichlet(
    labels: Positions, concentrations: ClassShares, rng: np.random.Generator
) -> list[Positions]:
    clients = len(concentrations)
    for _ in range(ATTEMPTS):
        dealt: list[list[Positions]] = [[] for _ in range(clients)]
        for rows in _by_class(labels, rng):
            shares = rng.dirichlet(concentrations)
            cuts = np.round(np.cumsum(shares)[:-1] * len(rows)).astype(int)
            for part, piece in zip(dealt, np.split(rows, cuts), strict=True):
                part.append(piece)
        parts = [np.concatenate(part) for part in dealt]
        if all(len(part) for part in parts):
            return parts
    raise ConfigError(
        f"federation.alpha: with {concentrations.mean():g}, some of the {clients} clients got none "
        f"of the {len(labels)} private rows in each of {ATTEMPTS} draws. "
        "Use a larger alpha, fewer clients or a longer task.split."
    )


def _by_label(
    labels: Positions, weights: ClassShares, classes_per_client: int, rng: np.random.Generator
) -> list[Positions]:
    clients = len(weights)
    rows = _by_class(labels, rng)
    if classes_per_client > len(rows):
        raise ConfigError(
            f"federation.classes_per_client: {classes_per_client} is more than the {len(rows)} "
            f"classes of the private rows. Use at most {len(rows)}."
        )
    order = rng.permutation(len(rows))
    turns = np.arange(clients * classes_per_client).reshape(clients, classes_per_client)
    owned = order[turns % len(rows)]
    dealt: list[list[Positions]] = [[] for _ in range(clients)]
    for label, positions in enumerate(rows):
        owners = [client for client in range(clients) if label in owned[client]]
        pieces = _split(positions, weights[owners]) if owners else []
        for owner, piece in zip(owners, pieces, strict=True):
            dealt[owner].append(piece)
    parts = [np.concatenate(part) for part in dealt]
    if empty := sum(len(part) == 0 for part in parts):
        raise ConfigError(
            f"federation.clients: {empty} of {clients} clients got no row, because their classes "
            "have too few. Use fewer clients, a larger classes_per_client or a longer task.split."
        )
    return parts


def _by_class(labels: Positions, rng: np.random.Generator) -> list[Positions]:
    """Shuffled positions of the rows of each class that occurs."""
    return [rng.permutation(np.flatnonzero(labels == label)) for label in np.unique(labels)]
