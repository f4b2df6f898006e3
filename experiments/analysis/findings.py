"""Records of what a run found: leakage, utility and every job; no private content."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import TypeAlias

from pydantic import Field

from experiments.analysis.evidence import SectionEvidence
from experiments.analysis.keys import DefenseInSetting, Placed
from experiments.analysis.statistics import Summary as Statistics
from experiments.analysis.statistics import paired_difference
from experiments.plan.config import VerdictRule
from experiments.wording.epsilons import Epsilons
from fedsim.records import MAIN, OTHER_CLIENT, PRIOR_ONLY, AttackKey, Modality
from fedsim.store.files import SCHEMA, Data, Sealed

Spread: TypeAlias = tuple[float, float | None, float | None]
"""A mean and the ends of its interval, None where there is none."""
HEADLINE: dict[Modality, tuple[str, ...]] = {
    "image": ("mse", "psnr", "ssim", "label_accuracy"),
    "text": (
        *("rouge1", "rouge2", "rougeL"),
        *("exact_match", "batch_token_precision", "batch_token_recall"),
    ),
}
"""Metrics in the result table; the table of all metrics has the others too."""
UTILITY = {"mcc": "higher", "accuracy": "higher", "perplexity": "lower", "loss": "lower"}
"""Measure of utility -> the better direction; the first one that was measured counts."""
PROBES = ("none", "member", "fresh")
"""Order on the page: clients, probes on rows that a client owns, probes on rows of no client."""


class Leakage(Statistics):
    """One metric over private examples, with the unit of the metric."""

    unit: str


class Problem(Data):
    """Why jobs failed or were skipped, and notes on jobs that finished.

    Attributes:
        status: of the jobs.
        reason: all that their records say.
        jobs: how many.
        cause: of refusals, the clause that says what is wrong; see ``JobRecord``.
    """

    status: str
    reason: str
    jobs: int
    cause: str = ""


class Result(Placed):
    """One attack under one defense, on the clients or on one kind of probe.

    Attributes:
        cells: the pooled cells, which differ in their seeds alone.
        setting: options in which these cells differ from others of the section, apart from seed
            and defense.
        control: ``none`` for the attack itself, else what it was given instead of the update.
        probe: one of ``PROBES``.
        jobs: number of jobs by status; all four statuses are present.
        leakage: by metric, over all rounds; a metric without any value is absent.
        rounds: by headline metric and round.
        seconds: wall time of all jobs; left out of the file, since it differs from run to run.
    """

    cells: tuple[str, ...]
    attack: str
    attack_options: str
    adaptive: bool
    control: str
    probe: str
    jobs: dict[str, int]
    problems: tuple[Problem, ...]
    leakage: dict[str, Leakage]
    rounds: dict[str, dict[int, Leakage]]
    seconds: float = Field(default=0.0, exclude=True)

    @property
    def is_control(self) -> bool:
        """Whether this is not the attack on clients, but a control or an attack on probes."""
        return (self.control, self.probe) != ("none", "none")

    @property
    def is_null(self) -> bool:
        """Whether this is a null baseline, which saw nothing of the victim."""
        return self.attack == PRIOR_ONLY or self.control == OTHER_CLIENT

    @property
    def attacker(self) -> AttackKey:
        """The attack with its options."""
        return AttackKey(
            attack=self.attack, attack_options=self.attack_options, adaptive=self.adaptive
        )

    @property
    def n(self) -> int:
        """Number of scored examples; 0 if every job was skipped."""
        return max((leakage.n for leakage in self.leakage.values()), default=0)


class RoundUtility(Placed):
    """The global model after a round; round 0 is before training.

    Attributes:
        values: mean over seeds, by measure.
        by_seed: by measure and seed.
        spent: privacy budget so far, the largest over seeds; None if none is claimed.
        bytes_up: size of all replies of the round, mean over seeds.
    """

    round: int
    values: dict[str, float]
    by_seed: dict[str, dict[int, float]]
    spent: Epsilons | None
    bytes_up: int

    @property
    def seeds(self) -> int:
        """Number of trainings."""
        return max((len(by_seed) for by_seed in self.by_seed.values()), default=0)

    def over_seeds(self, name: str, base: RoundUtility | None = None) -> Spread | None:
        """Mean over seeds and its t interval, or those of the paired difference to ``base``."""
        mine = self.by_seed.get(name, {})
        other = base.by_seed.get(name, {}) if base else dict.fromkeys(mine, 0.0)
        both = sorted(mine.keys() & other.keys())
        if not both:
            return None
        mean = sum(mine[seed] - other[seed] for seed in both) / len(both)
        if not math.isfinite(mean):  # a model that diverged
            return mean, None, None
        lead = paired_difference([mine[s] for s in both], [other[s] for s in both], both, fewest=2)
        return mean, lead.low, lead.high


def settled(measured: Sequence[RoundUtility]) -> RoundUtility | None:
    """Mean over the last tenth of the rounds, at least the last one; None without any round.

    Single rounds of SGD scatter by more than most defenses cost.
    """
    if not measured:
        return None
    ordered = sorted(measured, key=lambda utility: utility.round)
    window = ordered[-max(1, len(ordered) // 10) :]
    last = window[-1]
    by_seed = {
        name: {
            seed: fmean(
                point.by_seed[name][seed] for point in window if seed in point.by_seed[name]
            )
            for seed in seeds
        }
        for name, seeds in last.by_seed.items()
    }
    means = {name: fmean(seeds.values()) for name, seeds in by_seed.items()}
    return last.model_copy(update={"values": means, "by_seed": by_seed})


def learned(
    measure: str, ends: Sequence[Mapping[str, float]], starts: Sequence[Mapping[str, float]]
) -> bool:
    """Whether training without a defense surely made the model better, paired by seed.

    Of one seed that has no interval the mean counts, and the MCC where that is measured: a model
    that names the commonest class has an accuracy, and an MCC of 0. True where nothing was measured
    before training.

    Args:
        measure: of utility.
        ends: measure -> value at the end, for each seed.
        starts: the same before training.
    """
    known = set.intersection(*map(set, (*ends, *starts)))
    name = "mcc" if "mcc" in known else measure
    if name not in known:
        return True
    sign = 100 if UTILITY[name] == "higher" else -100  # in percent: no interval of hits
    after, before = ([sign * values[name] for values in side] for side in (ends, starts))
    gained = paired_difference(after, before, range(len(ends)), fewest=2)
    return (gained.mean if gained.low is None else gained.low) > 0


class TaskFindings(Data):
    """All findings for one task, data set, model and protocol.

    Attributes:
        victims: number of distinct private examples under attack, probes excluded.
        clients: number of distinct clients that own them; of cohorts under secure aggregation.
        levels: rungs of the ladder of realism, if the rows name them.
        rule: by which its verdicts were reached.
        foreign: another application's clients replied, so that "none" is a defense that is not
            known.
    """

    cells: tuple[str, ...]
    task: str
    dataset: str
    model: str
    protocol: str
    modality: Modality
    victims: int
    clients: int
    levels: tuple[str, ...]
    results: tuple[Result, ...]
    utility: tuple[RoundUtility, ...]
    evidence: SectionEvidence
    rule: VerdictRule = VerdictRule()
    foreign: bool = False

    @property
    def fewest(self) -> int:
        """Smallest number of clients behind any interval of the main metric."""
        attacked = [result.leakage for result in self.results if not result.is_control]
        counts = [leakage[self.main].clusters for leakage in attacked if self.main in leakage]
        return min(counts, default=0)

    @property
    def main(self) -> str:
        """Metric by which attacks and examples are ranked."""
        return MAIN[self.modality]

    def null(self, result: Result, kind: str) -> Result | None:
        """A null baseline on the same kind of victims.

        Args:
            result: the attack.
            kind: ``prior_only``, or ``other_client`` for the control of the same attack.
        """
        attack = (result.attack, result.attack_options)
        for other in self.results:
            prior = (other.attack, other.control) == (PRIOR_ONLY, "none")
            swapped = ((other.attack, other.attack_options), other.control) == (attack, kind)
            same = (other.place, other.probe) == (result.place, result.probe)
            if same and (prior if kind == PRIOR_ONLY else swapped):
                return other
        return None

    @property
    def places(self) -> tuple[DefenseInSetting, ...]:
        """Defenses that were attacked, in the order of the page."""
        return tuple(dict.fromkeys(result.place for result in self.results))

    @property
    def by_cell(self) -> dict[str, DefenseInSetting]:
        """Cell -> its defense and setting, for cells that were attacked."""
        return {cell: result.place for result in self.results for cell in result.cells}

    def result(self, place: DefenseInSetting, attacker: AttackKey) -> Result | None:
        """The attack on clients; controls and probes are no match."""
        for candidate in self.results:
            if (candidate.place, candidate.attacker) == (
                place,
                attacker,
            ) and not candidate.is_control:
                return candidate
        return None

    @property
    def utility_name(self) -> str | None:
        """The measure of utility that counts, see ``UTILITY``; None if none was measured."""
        measured = {name for utility in self.utility for name in utility.values}
        return next((name for name in UTILITY if name in measured), None)

    def at_end(self, place: DefenseInSetting) -> RoundUtility | None:
        """Utility at the end of training, see ``settled``."""
        return settled([utility for utility in self.utility if utility.place == place])


class Findings(Sealed, Data):
    """``summary.json``; the same rows give the same bytes, in whatever order they come."""

    schema_version: int = SCHEMA
    sections: tuple[TaskFindings, ...]
