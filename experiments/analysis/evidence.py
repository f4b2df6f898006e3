"""Records of what the rows of a section prove, on the main metric and on the same victims."""

from __future__ import annotations

from typing import Literal, TypeAlias

from experiments.analysis.keys import Data, Placed
from experiments.analysis.statistics import Difference, Estimate
from fedsim.records import AttackKey

Word: TypeAlias = Literal["leaks", "no leak found", "inconclusive", "not attacked"]


class Reached(Data):
    """Mean that one attack reached over all victims of one defense, see ``Scored``."""

    attacker: AttackKey
    leakage: Estimate
    refused: int


class Verdict(Placed):
    """What the attacks on one defense show, on the main metric.

    Attributes:
        word: follows from the intervals, see ``experiments/analysis/verdicts.py``.
        notes: why it is not another word, and what it rests on.
        levels: rungs of the ladder of realism, if the rows name them.
        attacks: number of attacks compared with a null baseline; they share the error of 5 %.
        victims: number of examples, counted once per round.
        clients: number of clients that own them.
        jobs: number of jobs of these attacks, by status.
        strongest: the attack with the highest mean; if some beat every baseline, among those.
        labels: the attack that infers withheld labels best, if it beats every baseline at it.
        null: the baseline that the strongest attack beats by least.
        nulls: mean of each baseline of the strongest attack, on its own victims.
        over_null: strongest attack less ``null`` on the same victims, at the corrected level.
        beating: attacks that beat every baseline.
        oblivious: the attack with the highest mean among those that ignore the defense.
        adaptive: the attack with the highest mean among those that model the defense.
        gained: the attack that ran in both variants and has the highest mean in one of them.
        gain: its adaptive variant less its oblivious one on the same victims.
        portfolio: mean if each client is attacked by what does best against all other clients.
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
    """Two runs of one attack on the same victims: ``difference`` is ``value`` less ``base``.

    ``value`` and ``base`` are the adaptive and the oblivious variant, or the means under a defense
    and without one.
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
    """How often a mismatched update is called a leak, with a 95 % Wilson interval of the rate.

    Attributes:
        baseline: what the guess from another client's update is compared with.
        tested: number of comparisons.
        called: number of those whose 95 % interval lies above 0.
    """

    baseline: str
    tested: int
    called: int
    low: float
    high: float


class AtLoss(Data):
    """Least leakage of one family of defenses at a stated cost in utility.

    Attributes:
        loss: cost, as a share of the utility without a defense.
        leakage: under the strongest attack on each member; None if every member costs more.
        how: the members interpolated between, or why there is no value.
    """

    setting: str
    defense: str
    loss: float
    leakage: Estimate | None
    how: str


class EqualUtility(Placed):
    """A defense compared with DP-SGD of equal utility, each under the strongest attack on it.

    Attributes:
        leakage: of the defense, on the victims of both; None without any.
        dp_sgd: leakage of DP-SGD on the same victims, interpolated in utility.
        difference: the defense less DP-SGD on the same victims; above 0, DP-SGD leaks less.
        how: the members interpolated between, or why there is no value.
    """

    leakage: float | None
    dp_sgd: float | None
    difference: Difference | None
    how: str


class Evidence(Data):
    """What the rows of a section prove, on the main metric.

    Attributes:
        gaps: adaptive less oblivious, for each attack that ran in both variants.
        against_none: each defense less none, under the strongest attack on the defense.
    """

    verdicts: tuple[Verdict, ...]
    gaps: tuple[Gap, ...]
    against_none: tuple[Gap, ...]
    certified: tuple[Certified, ...]
    null_calls: tuple[NullCalls, ...]
    at_loss: tuple[AtLoss, ...]
    equal_utility: tuple[EqualUtility, ...]
