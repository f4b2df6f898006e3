"""The noise that hides an example, and how often privacy lets it be guessed."""

import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch

from fedsim.accountant import Schedule, Turn
from fedsim.config.cell import CellConfig
from fedsim.defenses import build_chain
from fedsim.tasks.base import Task
from fedsim.tasks.text import TextTask
from fedsim.types import Rows


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


_ROWS = 2000  # number of rows whose tokens are counted


@dataclass(frozen=True, slots=True)
class Mechanism:
    """Noisy sums for which a defense claims differential privacy.

    Attributes:
        unit: the unit that privacy protects: ``example``, or a client's whole ``update``.
        noise: standard deviation divided by the sensitivity of one sum to one unit.
        turn: use of a unit within one round.
        rounds: number of rounds in which the client takes part.
    """

    unit: str
    noise: float
    turn: Turn
    rounds: int

    def bound(self, chance: float, rounds: int) -> float:
        """Upper bound on guessing a captured example right from the replies of ``rounds`` rounds.

        The example was certainly used in the captured round, and in every other round with the
        sampling probability of any row.
        """
        noise = self.noise / math.sqrt(self.turn.visits)
        return success_bound(
            chance, sure=1, steps=rounds - 1, rate=self.turn.chance, noise_multiplier=noise
        )


def mechanism(config: CellConfig, rows: int) -> Mechanism | None:
    """The privacy claim of the defense for a client with ``rows`` rows; None if it makes no claim.

    In a chain, the first defense with a claim counts: later ones are post-processing.
    """
    schedule = Schedule.of(config.federation, rows)
    for defense in build_chain(config.defense, "defense").fit(schedule).defenses:
        gaussian = defense.gaussian
        if defense.unit is None or gaussian is None or gaussian.std is None:
            continue
        turn = Turn.of(config.federation, rows) if defense.unit == "example" else Turn(1.0, 1)
        noise = gaussian.std / (gaussian.clip * gaussian.reach)
        return Mechanism(defense.unit, noise, turn, schedule.rounds)
    return None


def guesses(task: Task, private: Rows) -> Iterator[tuple[str, float]]:
    """Secrets of one example, with the probability of guessing each without any update."""
    if task.spec.num_classes:
        counts = torch.bincount(private.labels, minlength=task.spec.num_classes)
        yield "class, the most common", float(counts.max()) / len(private)
    if isinstance(task, TextTask):
        batch = task.encode(private.take(range(min(len(private), _ROWS))))
        assert batch.mask is not None
        special = torch.tensor(task.spec.special_ids, dtype=torch.int64)
        words = batch.inputs[(batch.mask == 1) & ~torch.isin(batch.inputs, special)]
        yield "token at a place, the most common", float(words.bincount().max()) / len(words)
        size = len(task.tokenizer)
        yield f"token at a place, any of {size:,}", 1 / size
    yield f"which of the {len(private):,} rows", 1 / len(private)


_LEAST_NOISE = 0.05
"""Noise multiplier below which one sum reveals nearly everything. The benefit of sampling is then
ignored, because the grid of privacy losses would become too long."""
_COARSEST = 0.1
_ERROR = 1e-3
_LARGEST = 200.0  # largest epsilon tried; the bound is trivial beyond it


@lru_cache(maxsize=1024)
def success_bound(
    chance: float, *, steps: int, rate: float, noise_multiplier: float, sure: int = 0
) -> float:
    """Upper bound on the probability that any attack guesses a secret right.

    Reconstruction robustness (Balle et al. 2022, definition 2; Hayes et al. 2023). Consider the
    event that the guess is right. If the row were replaced, the guess could not depend on it, and
    the event would have probability ``chance``. Under (epsilon, delta) differential privacy a
    probability grows by at most ``e^epsilon`` and ``delta``, so for every epsilon

        p <= e^epsilon chance + delta(epsilon).

    The bound is the minimum over epsilon. Without sampling, the privacy curve is Gaussian with
    ``mu = sqrt(sure + steps) / noise_multiplier`` (Dong et al. 2022), and the minimum is
    ``Phi(Phi^-1(chance) + mu)``. With sampling, the curve comes from a grid of privacy losses that
    rounds upwards. The attacker may know everything else: all other examples, the weights and
    which values are likely.

    Sampling hides whether an example was used. It does not protect an example of a captured
    batch, which is known to be there: its sums count as ``sure``.

    Args:
        chance: probability of the best guess without any update, in (0, 1].
        steps: number of sums that each contain the row independently with probability ``rate``.
        rate: sampling probability, in (0, 1].
        noise_multiplier: standard deviation of the noise divided by the clipping norm.
        sure: number of further sums that certainly contain the row.
    """
    if sure + steps == 0 or chance >= 1:
        return chance
    if noise_multiplier == 0:
        return 1.0
    unsampled = gaussian_bound(chance, math.sqrt(sure + steps) / noise_multiplier)
    if steps == 0 or rate >= 1 or noise_multiplier < _LEAST_NOISE:
        return unsampled
    epsilons, deltas = _curve(sure, steps, rate, noise_multiplier)
    with np.errstate(over="ignore"):
        bound = float((np.exp(epsilons) * chance + deltas).min())
    return min(1.0, bound, unsampled)


def gaussian_bound(chance: float, mu: float) -> float:
    """``success_bound`` of a Gaussian mechanism with sensitivity ``mu`` standard deviations."""
    from scipy.stats import norm

    return float(norm.cdf(norm.ppf(chance) + mu))


@lru_cache(maxsize=64)
def _curve(sure: int, steps: int, rate: float, noise: float) -> tuple[np.ndarray, np.ndarray]:
    """Epsilons and their deltas; each delta is the larger of adding and of removing a row."""
    from dp_accounting.pld import privacy_loss_distribution

    # As in the accountant, rounding adds about steps * grid^2 / 2, a thousandth of the bound.
    grid = min(_COARSEST, math.sqrt(2 * _ERROR / (steps + 1)) * max(1.0, (0.3 / noise) ** 2))
    step = privacy_loss_distribution.from_gaussian_mechanism(
        noise, sampling_prob=rate, value_discretization_interval=grid
    )
    composed = step.self_compose(steps)
    if sure:  # several sums of the same row equal one sum with less noise
        certain = privacy_loss_distribution.from_gaussian_mechanism(
            noise / math.sqrt(sure), value_discretization_interval=grid
        )
        composed = composed.compose(certain)
    epsilons = np.concatenate([np.linspace(-20, 20, 4001), np.linspace(20, _LARGEST, 1801)])
    return epsilons, np.asarray(composed.get_delta_for_epsilon(epsilons))
