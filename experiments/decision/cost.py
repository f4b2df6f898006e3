"""What a defense costs: the share of the utility without a defense that is lost."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from statistics import fmean

from experiments.analysis.findings import UTILITY, learned
from experiments.analysis.statistics import paired_difference
from experiments.decision.answer import Cost
from experiments.plan.cells import Cell
from fedsim.errors import ConfigError

_BY_RATIO = frozenset({"perplexity"})


def at_end(cell: Cell) -> dict[str, float]:
    """Measure -> its mean over the last tenth of the rounds, at least the last one.

    Single rounds of SGD scatter by more than most defenses cost.
    """
    points = cell.simulation.utility
    rounds = sorted({point.round for point in points})
    window = set(rounds[-max(1, len(rounds) // 10) :])
    by_measure: dict[str, list[float]] = defaultdict(list)
    for point in points:
        if point.round in window:
            by_measure[point.metric].append(point.value)
    return {metric: fmean(values) for metric, values in by_measure.items()}


def by_seed(cells: Iterable[Cell], *, start: bool = False) -> dict[int, dict[str, float]]:
    """Seed -> measure -> its value at the end, or before training."""
    if not start:
        return {cell.config.seed: at_end(cell) for cell in cells}
    return {
        cell.config.seed: {p.metric: p.value for p in cell.simulation.utility if p.round == 0}
        for cell in cells
    }


def check_measured(wanted: Iterable[str], measured: Iterable[str]) -> None:
    """Raise ``ConfigError`` for a limited measure that the task does not have."""
    known = set(measured)
    if missing := [name for name in wanted if name not in known]:
        names = ", ".join(sorted(known))
        raise ConfigError(f"--lose {missing[0]}: this task does not measure it, but {names}.")


def costs(
    limits: Mapping[str, float],
    here: Mapping[int, Mapping[str, float]],
    base: Mapping[int, Mapping[str, float]],
    start: Mapping[int, Mapping[str, float]],
    looks: int = 1,
) -> tuple[Cost, ...]:
    """The lost share of each measure that is limited; if none is, of the first that means any."""
    known = set(next(iter(base.values())))
    names = [name for name in limits or UTILITY if name in known]
    prices = (cost(name, here, base, start, limits.get(name), looks) for name in names)
    meant = tuple(price for price in prices if price is not None)
    return meant if limits else meant[:1]


def cost(
    measure: str,
    here: Mapping[int, Mapping[str, float]],
    base: Mapping[int, Mapping[str, float]],
    start: Mapping[int, Mapping[str, float]],
    limit: float | None = None,
    looks: int = 1,
) -> Cost | None:
    """The lost share, over the seeds of both; None where the base is 0 or a model diverged.

    Perplexities are compared by their ratios, whose logarithms are differences of the loss.

    Args:
        measure: of utility.
        here: seed -> measure -> value, with the defense.
        base: the same without one.
        start: the same before training.
        limit: the share that may be lost, if it was asked.
        looks: at how many numbers of seeds it is asked whether the interval excludes the limit.
    """
    seeds = sorted(here.keys() & base.keys())
    mine, other = ([run[seed][measure] for seed in seeds] for run in (here, base))
    if not fmean(other) > 0 or not math.isfinite(fmean(mine)):
        return None
    ratios = measure in _BY_RATIO
    if ratios:
        mine, other = ([math.log(value) for value in values] for values in (mine, other))
    sign = -1 if UTILITY[measure] == "higher" else 1
    # In percent, as values in [0, 1] would get the interval of hits.
    more, less = ([100 * sign * value for value in values] for values in (mine, other))
    lost = paired_difference(more, less, seeds, comparisons=looks, fewest=2)
    value, middle = fmean(mine), fmean(other)
    ends = {
        name: end if end is None else math.expm1(end / 100) if ratios else end / 100 / middle
        for name in ("mean", "low", "high")
        for end in [getattr(lost, name)]
    }
    if ratios:
        value, middle = math.exp(value), math.exp(middle)
    return Cost(
        measure=measure,
        value=value,
        base=middle,
        lost=lost.model_copy(update=ends),
        limit=limit,
        learned=learned(measure, [base[seed] for seed in seeds], [start[seed] for seed in seeds]),
    )
