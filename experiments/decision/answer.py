"""Records of a calibration: what was asked, what was tried, and the answer; no private content."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from experiments.analysis.statistics import Difference
from experiments.decision.search import Word
from fedsim.files import Data, Sealed

Outcome: TypeAlias = Literal["holds", "costs too much", "open", "leaks"]
"""Of a family: its weakest strength that holds is affordable, or is not; none is shown to hold; or
even the strongest leaks."""


class Question(Sealed):
    """All that the answer depends on.

    Attributes:
        experiment: fingerprint of the resolved experiment.
        hold: targets, ``name=value``.
        share: largest share of clients that may be hit, where a target allows none that is.
        lose: measure of utility -> share of it that may be lost.
        ranges: name of a defense -> weakest and strongest value in place of its own.
        strengths: how many strengths of a family are told apart.
        group: clients attacked between two looks.
        error: probability of any false ``holds``, and of any false ``leaks``.
        seeds: most under which the weakest that holds is trained, where none are named.
    """

    experiment: str
    hold: tuple[str, ...]
    share: float
    lose: dict[str, float]
    ranges: dict[str, tuple[float, float]]
    strengths: int
    group: int
    error: float
    seeds: int


class ReachedTarget(Data):
    """Leakage by one target, in its units.

    Attributes:
        attack: the attack with the highest upper bound.
        clients: that it was run on.
        mean: of these clients.
        low: surely at least, by any attack; a bound of ``leaks``.
        high: surely at most, by every attack; a bound of ``holds``.
        blind: mean of the guess that sees no update, on the clients that were attacked.
        bound: mean that no attack exceeds, by the nats of clipping and noise, if no blind guess is
            better than that; None where this says nothing.
    """

    target: str
    attack: str
    clients: int
    mean: float
    low: float
    high: float
    blind: float | None
    bound: float | None = None

    @property
    def more_is_worse(self) -> bool:
        """Whether a greater value is more leakage."""
        return self.low <= self.high

    @property
    def contradictory(self) -> bool:
        """Whether an attack is surely above what none can exceed."""
        if self.bound is None:
            return False
        return self.low > self.bound if self.more_is_worse else self.low < self.bound


class Tried(Data):
    """One strength.

    Attributes:
        name: display name of the defense.
        index: its place among the strengths of the family, the weakest being 0; -1 undefended.
        value: of the option.
        attack: of a leak, the attack that shows it; else the one nearest to the limit.
        target: which target decides.
        utility: measure -> its value at the end of training, the mean of the seeds that trained;
            empty where the training ends before.
        clients: attacked with at least one attack.
        available: that could have been attacked.
        jobs: attacks on captures that were run.
        reason: why it is open, as by faults or too few clients; else empty.
        every: whether all clients were attacked before the word was given.
    """

    name: str
    index: int
    value: float | None
    word: Word
    attack: str
    target: str
    reached: tuple[ReachedTarget, ...]
    utility: dict[str, float]
    clients: int
    available: int
    jobs: int
    reason: str
    every: bool = False


class Cost(Data):
    """Share of a measure of utility that is lost; its interval is over seeds.

    Attributes:
        value: at the end of training with the defense, the mean over seeds.
        base: the same without one.
        limit: the share that may be lost; None where nothing was asked.
        learned: whether without a defense the model is surely better than before training, by its
            MCC where that is measured.
    """

    measure: str
    value: float
    base: float
    lost: Difference
    limit: float | None
    learned: bool

    @property
    def is_measurable(self) -> bool:
        """Whether something was there to be lost: it was learned, or it is surely lost."""
        return self.learned or (self.lost.low is not None and self.lost.low > 0)

    @property
    def sure(self) -> bool:
        """Whether the interval lies on one side of the limit, or of nothing without one."""
        if self.lost.low is None or self.lost.high is None:
            return False
        limit = self.limit or 0.0
        return self.lost.high <= limit or self.lost.low > limit


class FamilyAnswer(Data):
    """The answer for one family.

    Attributes:
        title: display name with the options that are fixed.
        option: the option that is searched; None for a family of a single member.
        tried: in the order of strength.
        weakest: index of the weakest strength that holds, of ``values``; None if none was shown to.
        leaking: index of the strongest that was found to leak; -1 if undefended alone does.
        defense: the entry of an experiment's ``defenses`` for the weakest that holds.
        costs: what that loses of each measure that is limited, else of one that was measured.
            None is known where the base is 0 or a training diverged.
    """

    title: str
    option: str | None
    values: tuple[float | None, ...]
    outcome: Outcome
    tried: tuple[Tried, ...]
    weakest: int | None
    leaking: int
    defense: dict[str, Any] | None
    costs: tuple[Cost, ...]

    @property
    def jobs(self) -> int:
        """Attacks on captures that were run."""
        return sum(trial.jobs for trial in self.tried)

    @property
    def gaps(self) -> tuple[Tried, ...]:
        """Strengths above the weakest that holds at which an attack leaks nevertheless."""
        above = (trial for trial in self.tried if self.weakest is not None)
        return tuple(t for t in above if t.word == "leaks" and t.index > (self.weakest or 0))

    @property
    def at_weakest(self) -> Tried | None:
        """The weakest strength that holds."""
        return next((trial for trial in self.tried if trial.index == self.weakest), None)


class Answer(Sealed):
    """The answer of a calibration.

    Attributes:
        rows: which private rows stood for those to be protected.
        rounds: which rounds were attacked, such as ``round 1 of 100``.
        trainings: how many trainings the attacked updates are of.
        attacks: each with its options as written.
        undefended: without it nothing is shown: an attack has to leak what the targets forbid.
        chosen: place in ``families`` of the affordable one that costs least.
        jobs: attacks on captures that were run.
        grid: those of every strength on every client.
    """

    name: str
    question: Question
    rows: str
    rounds: str
    trainings: int
    attacks: tuple[str, ...]
    undefended: Tried
    families: tuple[FamilyAnswer, ...]
    chosen: int | None
    jobs: int
    grid: int
