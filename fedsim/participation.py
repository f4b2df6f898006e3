"""Who takes part in a round."""

from __future__ import annotations

from fedsim.seeds import numpy_generator


def draw(seed: int, round_: int, clients: int, share: float) -> list[int]:
    """The clients drawn for a round, ascending: a share of them all, and at least one."""
    count = max(1, round(share * clients))
    rng = numpy_generator(seed, "participation", round_)
    return sorted(rng.choice(clients, size=count, replace=False).tolist())
