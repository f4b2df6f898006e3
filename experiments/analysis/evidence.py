"""What the rows of a section prove, by the main metric and on the same victims."""

from __future__ import annotations

from typing import Literal, TypeAlias

from experiments.analysis.keys import AttackKey, Data, Placed
from experiments.analysis.statistics import Difference, Estimate

Word: TypeAlias = Literal["leaks", "no leak found", "inconclusive", "not attacked"]


class Reached(Data):
    """What one attack got from all victims of a place, see ``Scored``."""

    attacker: AttackKey
    leakage: Estimate
    refused: int


class Verdict(Placed):
    """What the attacks on one defense show, by the main metric.

    Attributes:
        word: follows from the intervals, see ``experiments/analysis/verdicts.py``.
        notes: why it is not another word, and what it rests on.
        attacks: how many attacks were compared with a null baseline and share the error.
        jobs: of all these attacks, by status.
        strongest: the attack with the highest mean, of those that beat their null if some do.
        labels: the attack that tells labels better than every baseline, by most; None where none
            does.
        null: the baseline that it beats by less.
        nulls: the mean of each baseline of the strongest attack, on its victims.
        over_null: strongest less that baseline on the same victims, at the corrected level.
        beating: the attacks that beat every null.
        oblivious: the attack with the highest mean among those that ignore the defense.
        adaptive: likewise among those that use it.
        gained: the attack whose two variants ``gain`` compares, the one with the highest mean.
        gain: its adaptive less its oblivious variant on the same victims.
        portfolio: every client is attacked by what does best against the other clients.
    """

    word: Word
    notes: tuple[str, ...]
    levels: tuple[str, ...]
    attacks: int
    victims: int
    clients: int
    jobs: dict[str, int]
    strongest: Reached | None
    labels: AttackKey | None
    null: str | None
    nulls: dict[str, float]
    over_null: Difference | None
    beating: tuple[AttackKey, ...]
    oblivious: Reached | None
    adaptive: Reached | None
    gained: AttackKey | None
    gain: Difference | None
    portfolio: Estimate | None


class Gap(Placed):
    """One attack in two ways on the same victims: ``difference`` is ``value`` less ``base``.

    The two ways are adaptive and oblivious, or under a defense and without one.
    """

    attacker: AttackKey
    value: float
    base: float
    difference: Difference


class Certified(Placed):
    """How many certified reconstructions are exact, with a 95 % Wilson interval of the rate."""

    attacker: AttackKey
    certified: int
    exact: int
    low: float
    high: float


class NullCalls(Data):
    """How often a wrong update is called a leak, with a 95 % Wilson interval of the rate.

    Attributes:
        baseline: what the guess from another client's update is compared with.
    """

    baseline: str
    tested: int
    called: int
    low: float
    high: float


class AtLoss(Data):
    """Leakage of one family of defenses where it costs a stated share of the utility.

    Attributes:
        loss: the share of the utility without a defense.
        leakage: by the strongest attack on each member; None where no member costs so little.
        how: what was interpolated, or why nothing could be.
    """

    setting: str
    defense: str
    loss: float
    leakage: Estimate | None
    how: str


class EqualUtility(Placed):
    """A defense beside DP-SGD of the same utility, each under the strongest attack on it.

    Attributes:
        leakage: of the defense, on the victims of both; None where there is none.
        difference: the defense less DP-SGD on the same victims; above 0, DP-SGD leaks less.
    """

    leakage: float | None
    dp_sgd: float | None
    difference: Difference | None
    how: str


class Evidence(Data):
    """What the rows of a section prove, by the main metric.

    Attributes:
        gaps: adaptive less oblivious, for each attack that ran both ways.
        against_none: each defense less none, by the strongest attack on the defense.
    """

    verdicts: tuple[Verdict, ...]
    gaps: tuple[Gap, ...]
    against_none: tuple[Gap, ...]
    certified: tuple[Certified, ...]
    null_calls: tuple[NullCalls, ...]
    at_loss: tuple[AtLoss, ...]
    equal_utility: tuple[EqualUtility, ...]
