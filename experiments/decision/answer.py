"""Records of a calibration: what was asked, what was tried, and the answer; no private content."""

from typing import Any, Literal, TypeAlias

from experiments.analysis.held import HeldWord
from experiments.analysis.statistics import Difference
from fedsim.store.files import Data, Sealed

Outcome: TypeAlias = Literal["holds", "costs too much", "open", "leaks"]
"""Of a family: the strength that it stands at is affordable, or none is; none is shown to hold; or
even the strongest leaks."""


class Question(Sealed):
    """All that the answer depends on.

    Attributes:
        experiment: fingerprint of the resolved experiment.
        hold: targets, ``name=value``; none where the strongest affordable strength is asked for.
        share: largest share of clients that may be hit, where a target allows none that is.
        lose: measure of utility -> share of it that may be lost.
        ranges: name of a defense -> weakest and strongest value in place of its own.
        strengths: how many strengths of a family are told apart.
        group: clients attacked before the first look.
        error: probability of any false ``holds``, and of any false ``leaks``.
        seeds: most under which what holds is trained, where none are named.
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
        attack: the attack with the highest upper bound; of a share, with the most clients hit.
        clients: with a score.
        mean: of these clients.
        low: surely at least, by any attack; a bound of ``leaks``.
        high: surely at most, by every attack; a bound of ``holds``.
        blind: mean of the guess that sees no update; None of a share.
    """

    target: str
    attack: str
    clients: int
    mean: float
    low: float
    high: float
    blind: float | None

    @property
    def more_is_worse(self) -> bool:
        """Whether a greater value is more leakage."""
        return self.low <= self.high


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


class Tried(Data):
    """One strength.

    Attributes:
        name: display name of the defense.
        index: its place among the strengths of the family, the weakest being 0; -1 undefended.
        value: of the option.
        word: ``open`` where nothing was attacked.
        target: the one that leaks most surely, or is nearest to its limit.
        reached: by each target, in the order of the question.
        clients: attacked.
        available: that could have been attacked.
        jobs: attacks on captures that were run.
        reason: why it is open, as by jobs that failed or too few clients; else empty.
        costs: what it loses of each measure that is limited, else of one that was measured, where
            that was asked. None is known where the base is 0 or a training diverged.
    """

    name: str
    index: int
    value: float | None
    word: HeldWord = "open"
    target: str = ""
    reached: tuple[ReachedTarget, ...] = ()
    clients: int = 0
    available: int = 0
    jobs: int = 0
    reason: str = ""
    costs: tuple[Cost, ...] = ()

    def affordable(self, lose: dict[str, float]) -> bool:
        """Whether it loses no more of each measure than these shares, by the mean over seeds."""
        lost = {cost.measure: cost.lost.mean for cost in self.costs}
        return all(name in lost and lost[name] <= limit for name, limit in lose.items())


class FamilyAnswer(Data):
    """The answer for one family.

    Attributes:
        title: display name with the options that are fixed.
        option: the option that is searched; None for a family of a single member.
        tried: in the order of strength.
        chosen: index, of ``values``, of the weakest strength that holds, or of the strongest that
            is affordable where nothing is to be held; None if there is none.
        defense: the entry of an experiment's ``defenses`` for the chosen one.
        epsilon: what the chosen one has spent at the end, in words; empty where it claims none.
    """

    title: str
    option: str | None
    values: tuple[float | None, ...]
    outcome: Outcome
    tried: tuple[Tried, ...]
    chosen: int | None
    defense: dict[str, Any] | None
    epsilon: str = ""

    @property
    def leaking(self) -> int:
        """Index of the strongest that leaks below the chosen one; -1 if undefended alone does."""
        upto = len(self.values) if self.chosen is None else self.chosen
        below = (trial.index for trial in self.tried if trial.word == "leaks")
        return max((index for index in below if index < upto), default=-1)

    @property
    def jobs(self) -> int:
        """Attacks on captures that were run."""
        return sum(trial.jobs for trial in self.tried)

    @property
    def at(self) -> Tried | None:
        """The chosen strength."""
        return next((trial for trial in self.tried if trial.index == self.chosen), None)

    @property
    def costs(self) -> tuple[Cost, ...]:
        """What the chosen strength loses."""
        return self.at.costs if self.at else ()

    @property
    def gaps(self) -> tuple[Tried, ...]:
        """Strengths above the chosen one at which an attack leaks nevertheless."""
        above = (trial for trial in self.tried if self.chosen is not None)
        return tuple(t for t in above if t.word == "leaks" and t.index > (self.chosen or 0))

    @property
    def end(self) -> str:
        """Which end of its range an affordable family stands at; empty between them."""
        if self.chosen is None:
            return "not even the weakest"
        return "even the strongest" if self.chosen == len(self.values) - 1 else ""


class Answer(Sealed):
    """The answer of a calibration.

    Attributes:
        rows: which private rows stood for those to be protected.
        rounds: which rounds were attacked, such as ``round 1 of 100``; empty where none was.
        seeds: of the trainings whose updates were attacked, or whose utility was compared.
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
    seeds: tuple[int, ...]
    attacks: tuple[str, ...]
    undefended: Tried
    families: tuple[FamilyAnswer, ...]
    chosen: int | None
    jobs: int
    grid: int
