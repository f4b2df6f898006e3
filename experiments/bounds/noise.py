"""The Gaussian noise of a defense, as the attacker of one example meets it."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass

from fedsim.accountant import Schedule, Turn
from fedsim.config.cell import CellConfig
from fedsim.defenses import build_chain


@dataclass(frozen=True, slots=True)
class Noise:
    """Gaussian noise on what one example adds to a reply.

    Attributes:
        std: standard deviation, on the scale of the example's own gradient.
        clip: largest norm of that gradient.
        sums: how many noisy sums of a reply have the example.
        single: why the reply is not one such sum of gradients; else empty.
    """

    std: float
    clip: float
    sums: int
    single: str

    @property
    def clipped(self) -> float:
        """Nats of one reply by clipping and noise; infinite without clipping."""
        return self.sums * self.clip**2 / (2 * self.std**2)


def noise(config: CellConfig, rows: int) -> Noise | None:
    """The noise of a client that owns ``rows`` rows; None if there is none, or it comes late.

    A defense before the noise that is not clipping would have to be replayed for its gradients.
    """
    federation, clip = config.federation, math.inf
    schedule = Schedule.of(federation, rows)
    chain = build_chain(config.defense, "defense").fit(schedule)
    steps = schedule.steps // schedule.rounds
    alike = steps == 1 and (federation.protocol == "fedsgd" or federation.plain)
    for defense in chain.defenses:
        gaussian = defense.gaussian
        if gaussian is None or gaussian.std is None:
            return None
        clip = min(clip, gaussian.clip)
        if not gaussian.std:
            continue
        visits = Turn.of(federation, rows).visits
        scale = 1.0 if defense.changes_sum else math.sqrt(federation.batch_size)
        single = "" if alike else "a reply is not one gradient"
        if defense.changes_update:  # of gradient * rate / batch size
            visits, scale = 1, float(federation.batch_size)
            scale /= federation.learning_rate if federation.protocol == "fedavg" else 1.0
            if clip < math.inf and federation.batch_size > 1:
                single = "clipping mixes the examples of a batch"
        return Noise(gaussian.std * scale, clip * scale, visits, single)
    return None


def least_noise(config: CellConfig, owned: Collection[int]) -> Noise | None:
    """That of the client with the least; ``owned`` has the number of rows of each."""
    known = [noise(config, rows) for rows in sorted(set(owned))]
    noises = [floor for floor in known if floor is not None]
    return max(noises, key=lambda floor: (floor.clipped, -floor.std), default=None)


def over_rounds(config: CellConfig, owned: Collection[int], nats: float) -> float:
    """Nats of all rounds, given those of the reply that surely has the example."""
    federation = config.federation
    chance = max(Turn.of(federation, rows).chance for rows in owned)
    return nats * (1 + (federation.rounds - 1) * chance)
