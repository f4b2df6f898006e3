"""The schema of ``limits.json``: upper limits on any attack on a run."""

from typing import Literal, TypeAlias

from attacks.feasibility import Feasibility
from fedsim.store.files import Record, Sealed

Source: TypeAlias = Literal["bits sent", "clipping and noise", "noise on public gradients"]
"""What bounds the information in a reply."""


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


class BudgetLimit(Limit):
    """The most that the replies of a client tell of one of its examples, by whatever attack.

    Attributes:
        source: what bounds it, see ``experiments.bounds.budgets``.
        nats: of the reply of the captured round.
        all: of the replies of all rounds.
        blind: PSNR of the mean squared error of the best blind guess, in dB, by ``images``.
        proved: PSNR of the mean squared error that no attack exceeds, in dB, where private images
            are drawn like the public ones; infinite where this says nothing.
        all_proved: the same of the replies of all rounds.
        assumed: of one reply, were images Gaussian with the spectrum of the public ones.
        exact: share of texts that any attack returns exactly, at most, on the same condition.
        images: number of public images; 0 for texts, which have no bounds in dB.
    """

    source: Source
    nats: float
    all: float
    all_source: Source | None = None
    exact: float | None = None
    images: int = 0
    blind: float | None = None
    proved: float | None = None
    all_proved: float | None = None
    assumed: float | None = None


class LimitsRecord(Sealed):
    """The whole of ``limits.json``."""

    ranks: tuple[RankLimit, ...]
    successes: tuple[SuccessLimit, ...]
    budgets: tuple[BudgetLimit, ...]
