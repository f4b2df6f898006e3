"""The schema of ``limits.json``: upper limits on any attack on a run."""

from __future__ import annotations

from attacks.feasibility import Feasibility
from fedsim.files import Record, Sealed


class Limit(Record):
    """A limit on the attacks on one cell; ``run`` is the name of its experiment."""

    run: str
    cell: str
    defense: str
    defense_options: str


class RankLimit(Limit):
    """Feasibility of one exact attack, from the ranks of the clients' replies."""

    attack: str
    feasibility: Feasibility


class SuccessLimit(Limit):
    """Upper bound, from differential privacy, on the probability of guessing an example right.

    Attributes:
        unit: the unit that privacy protects: ``example``, or a client's whole ``update``.
        noise: standard deviation divided by the sensitivity of one sum to one unit; the smallest
            of any client.
        guess: the secret that is guessed.
        without: probability of guessing right without seeing any update.
        one: upper bound given the update of the round in which the example was captured.
        all: upper bound given the updates of all rounds.
    """

    unit: str
    noise: float
    guess: str
    without: float
    one: float
    all: float
    rounds: int


class CeilingLimit(Limit):
    """The local PSNR ceiling of one captured image.

    Attributes:
        std: standard deviation of the noise on each gradient coordinate.
        psnr: PSNR of the smallest achievable mean squared error, in dB.
        prior: what the attacker is assumed to know about images in advance.
    """

    round: int
    client: int
    std: float
    psnr: float
    prior: str


class LimitsRecord(Sealed):
    """The whole of ``limits.json``."""

    ranks: tuple[RankLimit, ...]
    successes: tuple[SuccessLimit, ...]
    ceilings: tuple[CeilingLimit, ...]
