"""What bounds any attack on a run, as ``limits.json`` keeps it."""

from __future__ import annotations

from attacks.feasibility import Feasibility
from fedsim.files import Record


class Limit(Record):
    """Something that bounds the attacks on one cell; ``run`` is the name of its experiment."""

    run: str
    cell: str
    defense: str
    defense_options: str


class RankLimit(Limit):
    """Whether one exact attack can work, by what replies hold."""

    attack: str
    feasibility: Feasibility


class SuccessLimit(Limit):
    """The largest chance to guess a captured example right that differential privacy leaves.

    Attributes:
        unit: what is hidden: an example, or all of a client's update.
        noise: standard deviation in units of what one such unit can change in one sum; the least
            of any client.
        guess: what is guessed of one example.
        without: chance to be right without any update.
        one: with the update of the round in which the example was captured, at most.
        all: with those of all rounds, at most.
    """

    unit: str
    noise: float
    guess: str
    without: float
    one: float
    all: float
    rounds: int


class CeilingLimit(Limit):
    """The local PSNR ceiling of one capture of one image.

    Attributes:
        std: of the noise on a coordinate of the gradient.
        psnr: of the least mean squared error, in dB.
        prior: what was taken to be known of images before any gradient.
    """

    round: int
    client: int
    std: float
    psnr: float
    prior: str


class LimitsRecord(Record):
    """``limits.json``."""

    ranks: tuple[RankLimit, ...]
    successes: tuple[SuccessLimit, ...]
    ceilings: tuple[CeilingLimit, ...]
