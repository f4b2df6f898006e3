"""Records of what the rows of a section prove, on the main metric and on the same victims."""

from __future__ import annotations

from typing import Literal, TypeAlias

from pydantic import Field

from experiments.analysis.keys import Placed
from experiments.analysis.membership import Finding
from experiments.analysis.statistics import Difference, Estimate
from fedsim.files import Data
from fedsim.records import AttackKey

Word: TypeAlias = Literal[
    "leaks",
    "labels leak",
    "members leak",
    "holds by bound",
    "no leak found",
    "not decided",
    "not attacked",
]
Grade: TypeAlias = Literal[
    "verbatim", "recognisable", "better than guessing", "words", "class only"
]
"""How bad a leak is, the worst first."""
Kind: TypeAlias = Literal[
    "false_certificates",
    "no_metric",
    "unrun",
    "no_null",
    "few_clients",
    "alike",
    "wide",
    "beats_one",
    "recovered",
    "exact",
    "beyond",
    "class_only",
    "round",
    "seed",
    "answered",
    "members",
    "contradiction",
    "failed",
    "unfinished",
    "exhausted",
    "interrupted",
    "no_adaptive",
    "no_control",
    "below_blind",
    "search_errors",
    "power_unmeasured",
    "foreign_control",
    "hardly_tested",
    "skipped",
]
"""Kinds of reasons, see ``docs/reference/verdicts.md``."""


class Reason(Data):
    """Why a verdict is not another one, or what to know beside it; the report makes a sentence.

    Attributes:
        attack: the attack that it is about; None for all of them as one.
        baseline: the null baseline that it is about.
        metric: the metric that it is about.
        setting: the setting that it is about, if that is another one.
        numbers: by name, such as ``clients`` and ``needed``.
    """

    kind: Kind
    attack: AttackKey | None = None
    baseline: str = ""
    metric: str = ""
    setting: str = ""
    numbers: dict[str, float] = Field(default_factory=dict)


class Clients(Data):
    """Clients with an example on which an attack passed a bar and no null baseline did.

    Attributes:
        hit: number of these clients, under any attack.
        of: number of attacked clients.
        examples: number of their examples that passed.
        low: the share of clients is at least this, at 95 % (Clopper and Pearson, one-sided).
        high: and at most this, from those that some attack did not refuse.
    """

    hit: int
    of: int
    examples: int
    low: float
    high: float


class Reached(Data):
    """Mean that one attack reached over all victims of one defense, see ``Scored``."""

    attacker: AttackKey
    leakage: Estimate
    refused: int


class Verdict(Placed):
    """What the attacks on one defense show, see ``experiments/analysis/verdicts.py``.

    Attributes:
        word: the verdict.
        rows: the verdict on the private rows alone, without labels and members.
        grade: how bad the leak is; None without one, and for members.
        smallest: smallest effect that counts, in units of the main metric.
        most: the mean of all attacks as one is at most this above every null baseline, at 95 %;
            None where a bound is missing.
        verbatim: clients with an example that came back exactly, and not by chance.
        exact: clients with an example that came back exactly, whatever a blind guess does.
        recovered: clients with an example that passed the threshold of the main metric.
        beyond: clients with an example whose lead is above every null lead of any client, by the
            smallest effect.
        reasons: why it is not another word, and what it rests on.
        levels: rungs of the ladder of realism, if the rows name them.
        attacks: number of attacks with a score; they are one comparison, as an attacker runs all.
        victims: number of examples, counted once per round.
        clients: number of clients that own them.
        jobs: number of jobs of these attacks, by status.
        strongest: the attack with the highest mean; if some are shown to leak, among those.
        labels: the attack that infers withheld labels best, if one beats every baseline at it.
        members: what tells members best, if it is shown to.
        null: the baseline that all attacks as one beat by least.
        nulls: mean of each baseline of the strongest attack, on its own victims.
        over_null: all attacks as one less ``null`` on the same victims.
        beating: attacks that are shown to leak rows.
        oblivious: the attack with the highest mean among those that ignore the defense.
        adaptive: the attack with the highest mean among those that model the defense.
        gained: the attack that ran in both variants and has the highest mean in one of them.
        gain: its adaptive variant less its oblivious one on the same victims.
        portfolio: mean if each client is attacked by what does best against all other clients.
    """

    word: Word
    rows: Word
    grade: Grade | None
    smallest: float
    most: float | None
    verbatim: Clients
    exact: Clients
    recovered: Clients
    beyond: Clients
    reasons: tuple[Reason, ...]
    levels: tuple[str, ...]
    attacks: int
    victims: int
    clients: int
    jobs: dict[str, int]
    strongest: Reached | None
    labels: AttackKey | None
    members: Finding | None
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
    """How many certified reconstructions are exact; the interval of the rate is over clients."""

    attacker: AttackKey
    certified: int
    exact: int
    low: float
    high: float


class NullCalls(Data):
    """How often a mismatched update is called a leak; tests share victims, so without an interval.

    Attributes:
        baseline: what the guess from another client's update is compared with.
        tested: number of comparisons.
        called: number of those whose 95 % interval lies above 0.
    """

    baseline: str
    tested: int
    called: int


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


class SectionEvidence(Data):
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
