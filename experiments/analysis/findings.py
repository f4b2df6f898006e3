"""What a run found: leakage, utility and the fate of every job, without any private content."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean
from typing import TypeAlias

from pydantic import Field

from experiments.analysis.evidence import Evidence
from experiments.analysis.keys import AttackKey, Data, DefenseKey, Placed
from experiments.analysis.statistics import Summary as Statistics
from experiments.analysis.statistics import paired_difference
from fedsim.files import SCHEMA
from fedsim.records import MAIN, OTHER_CLIENT, PRIOR_ONLY, Modality

Spread: TypeAlias = tuple[float, float | None, float | None]
"""A mean and the ends of its interval, None where there is none."""
HEADLINE: dict[Modality, tuple[str, ...]] = {
    "image": ("mse", "psnr", "ssim", "label_accuracy"),
    "text": (
        *("rouge1", "rouge2", "rougeL"),
        *("exact_match", "batch_token_precision", "batch_token_recall"),
    ),
}
"""Metrics of the result table; the others are in the table of all metrics."""
CURVES: dict[Modality, tuple[str, ...]] = {"image": ("psnr",), "text": ("rougeL", "exact_match")}
"""The metrics that are drawn by round."""
THRESHOLDS = {"psnr": 25.0, "ssim": 0.9, "rouge1": 0.9, "rouge2": 0.9, "rougeL": 0.9}
"""From which value an example counts as recovered; metrics that are 0 or 1 need none."""
MARGINS: dict[Modality, float] = {"image": 1.0, "text": 0.05}
"""The smallest gain over a null baseline, in units of the main metric, that is called a leak."""
UTILITY = {"mcc": "higher", "accuracy": "higher", "perplexity": "lower", "loss": "lower"}
"""Which measure of utility counts, the first of these that was taken, and which way is better."""
PROBES = ("none", "member", "fresh")
"""Clients, probes on rows that a client owns, and probes on rows that none owns, in order."""


class Leakage(Statistics):
    """One metric over private examples, with the unit of the metric."""

    unit: str


class Problem(Data):
    """Why jobs did not end well, or what there is to know of those that did."""

    status: str
    reason: str
    jobs: int


class Result(Placed):
    """One attack under one defense, on the clients or on one kind of probe.

    Attributes:
        cells: the cells pooled, which differ in their seeds.
        setting: how these cells differ from others of the section beside seed and defense.
        probe: one of ``PROBES``.
        jobs: jobs by status; all four statuses are there.
        leakage: by metric, over all rounds; a metric without a value is absent.
        rounds: by headline metric and round.
        seconds: wall time of all jobs; not in the file, as it differs from run to run.
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
        """Whether it is a control, or was made on probes."""
        return (self.control, self.probe) != ("none", "none")

    @property
    def is_null(self) -> bool:
        """Whether the attack saw nothing of the victim."""
        return self.attack == PRIOR_ONLY or self.control == OTHER_CLIENT

    @property
    def attacker(self) -> AttackKey:
        """The attack with its options."""
        return AttackKey(
            attack=self.attack, attack_options=self.attack_options, adaptive=self.adaptive
        )

    @property
    def n(self) -> int:
        """Scored examples; 0 where every job was skipped."""
        return max((found.n for found in self.leakage.values()), default=0)


class RoundUtility(Placed):
    """The global model after a round; round 0 is before training.

    Attributes:
        values: by measure, the mean over seeds.
        by_seed: by measure and seed.
    """

    round: int
    values: dict[str, float]
    by_seed: dict[str, dict[int, float]]
    epsilon: float | None
    bytes_up: int

    @property
    def seeds(self) -> int:
        """How many trainings there were."""
        return max((len(by_seed) for by_seed in self.by_seed.values()), default=0)

    def over_seeds(self, name: str, base: RoundUtility | None = None) -> Spread | None:
        """A measure, or it less that of ``base`` on the seeds of both: mean and t interval."""
        mine = self.by_seed.get(name, {})
        other = base.by_seed.get(name, {}) if base else dict.fromkeys(mine, 0.0)
        both = sorted(mine.keys() & other.keys())
        if not both:
            return None
        mean = sum(mine[seed] - other[seed] for seed in both) / len(both)
        if not math.isfinite(mean):  # a model that diverged
            return mean, None, None
        found = paired_difference([mine[s] for s in both], [other[s] for s in both], both)
        return mean, found.low, found.high


def settled(measured: Sequence[RoundUtility]) -> RoundUtility | None:
    """The mean over the last tenth of the rounds, at least the last one; None without any.

    Single rounds of SGD scatter by more than what most defenses cost.
    """
    if not measured:
        return None
    ordered = sorted(measured, key=lambda utility: utility.round)
    window = ordered[-max(1, len(ordered) // 10) :]
    last = window[-1]
    by_seed = {
        name: {
            seed: fmean(one.by_seed[name][seed] for one in window if seed in one.by_seed[name])
            for seed in seeds
        }
        for name, seeds in last.by_seed.items()
    }
    means = {name: fmean(seeds.values()) for name, seeds in by_seed.items()}
    return last.model_copy(update={"values": means, "by_seed": by_seed})


class TaskFindings(Data):
    """All that was found for one task, data set, model and protocol.

    Attributes:
        victims: distinct private examples under attack, without those of probes.
        clients: distinct clients that own them; cohorts under secure aggregation.
        levels: rungs of the ladder of realism, where the rows name them.
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
    evidence: Evidence

    @property
    def fewest(self) -> int:
        """Clients behind the interval that rests on the fewest."""
        attacked = (result for result in self.results if not result.is_control)
        counts = [one.clusters for result in attacked for one in result.leakage.values()]
        return min(counts, default=0)

    @property
    def main(self) -> str:
        """The metric by which attacks and examples are ranked."""
        return MAIN[self.modality]

    def null(self, result: Result, kind: str) -> Result | None:
        """``prior_only``, or ``other_client`` of the same attack, on the same kind of victims."""
        attack = (result.attack, result.attack_options)
        for other in self.results:
            prior = (other.attack, other.control) == (PRIOR_ONLY, "none")
            swapped = ((other.attack, other.attack_options), other.control) == (attack, kind)
            same = (other.place, other.probe) == (result.place, result.probe)
            if same and (prior if kind == PRIOR_ONLY else swapped):
                return other
        return None

    @property
    def places(self) -> tuple[DefenseKey, ...]:
        """Settings and defenses in their order."""
        return tuple(dict.fromkeys(result.place for result in self.results))

    @property
    def by_cell(self) -> dict[str, DefenseKey]:
        """Cell -> its setting and defense, for cells that were attacked."""
        return {cell: result.place for result in self.results for cell in result.cells}

    def result(self, place: DefenseKey, attacker: AttackKey) -> Result | None:
        """The attack itself on clients, neither a control nor on probes."""
        for found in self.results:
            if (found.place, found.attacker) == (place, attacker) and not found.is_control:
                return found
        return None

    @property
    def utility_name(self) -> str | None:
        """Which measure of utility counts."""
        measured = {name for utility in self.utility for name in utility.values}
        return next((name for name in UTILITY if name in measured), None)

    def at_end(self, place: DefenseKey) -> RoundUtility | None:
        """Utility of the cells at the end of training, see ``settled``."""
        return settled([utility for utility in self.utility if utility.place == place])


class Findings(Data):
    """``summary.json``: the same rows give the same bytes, in whatever order they come."""

    schema_version: int = SCHEMA
    sections: tuple[TaskFindings, ...]
