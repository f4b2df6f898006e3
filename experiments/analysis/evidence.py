"""Records of what the rows of a section prove, on the main metric and on the same victims."""

from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from pydantic import Field

from experiments.analysis.keys import Placed
from experiments.analysis.membership import Finding
from experiments.analysis.statistics import Difference, Estimate
from fedsim.records import AttackKey
from fedsim.store.files import Data

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
    "no_blind",
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
    "planted",
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


@dataclass(frozen=True, slots=True)
class Shown:
    """What is shown of one defense; its word follows, in a verdict and on a page of captures.

    Attributes:
        grades: of all that leaks of the rows.
        open: what keeps rows that are not shown to leak from a word of holding.
        attacked: whether any attack guessed, or was to and did not end.
        bounded: whether a bound on information rules out the smallest effect.
        labels: whether labels that were withheld are read.
        members: whether members are told.
    """

    grades: frozenset[Grade] = frozenset()
    open: tuple[Reason, ...] = ()
    attacked: bool = True
    bounded: bool = False
    labels: bool = False
    members: bool = False

    @property
    def grade(self) -> Grade | None:
        """How bad the worst leak is; None without one, and for members."""
        known = {*self.grades, *(("class only",) if self.labels else ())}
        return next((grade for grade in get_args(Grade) if grade in known), None)

    @property
    def rows(self) -> Word:
        """The word on the private rows alone."""
        if self.grades:
            return "leaks"
        if self.bounded:
            return "holds by bound"
        if not self.attacked:
            return "not attacked"
        return "not decided" if self.open else "no leak found"

    @property
    def word(self) -> Word:
        """The word on rows, labels and members."""
        if self.grades or not (self.labels or self.members):
            return self.rows
        return "labels leak" if self.labels else "members leak"


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
        reasons: why it is not another word, and what it rests on.
        lacking: what a word of holding would lack whatever the scores are; not in the file.
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
    """

    word: Word
    rows: Word
    grade: Grade | None
    smallest: float
    most: float | None
    verbatim: Clients
    exact: Clients
    recovered: Clients
    reasons: tuple[Reason, ...]
    lacking: tuple[Reason, ...] = Field(default=(), exclude=True)
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


class Gap(Placed):
    """What adapting an attack gains it on the same victims: ``difference``.

    Attributes:
        value: mean of the adaptive variant.
        base: mean of the oblivious one.
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


class SectionEvidence(Data):
    """What the rows of a section prove, on the main metric.

    Attributes:
        gaps: adaptive less oblivious, for each attack that ran in both variants.
    """

    verdicts: tuple[Verdict, ...]
    gaps: tuple[Gap, ...]
    certified: tuple[Certified, ...]
