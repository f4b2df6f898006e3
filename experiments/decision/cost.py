"""What a defense costs: the share of the utility without a defense that is lost."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from statistics import fmean

from experiments.analysis.findings import UTILITY
from experiments.analysis.statistics import paired_difference
from experiments.decision.answer import Cost
from experiments.plan.cells import Cell
from fedsim.errors import ConfigError
from fedsim.files import read_record
from fedsim.records import SimulationRecord


def at_end(cell: Cell) -> dict[str, float]:
    """Measure -> its mean over the last tenth of the rounds, at least the last one.

    Single rounds of SGD scatter by more than most defenses cost.
    """
    points = read_record(cell.folder / "simulation.json", SimulationRecord).utility
    rounds = sorted({point.round for point in points})
    window = set(rounds[-max(1, len(rounds) // 10) :])
    by_measure: dict[str, list[float]] = defaultdict(list)
    for point in points:
        if point.round in window:
            by_measure[point.metric].append(point.value)
    return {metric: fmean(values) for metric, values in by_measure.items()}


def by_seed(cells: Iterable[Cell]) -> dict[int, dict[str, float]]:
    """Seed -> utility at the end."""
    return {cell.config.seed: at_end(cell) for cell in cells}


def check_measured(wanted: Iterable[str], measured: Iterable[str]) -> None:
    """Raise ``ConfigError`` for a limited measure that the task does not have."""
    known = set(measured)
    if missing := [name for name in wanted if name not in known]:
        names = ", ".join(sorted(known))
        raise ConfigError(f"--lose {missing[0]}: this task does not measure it, but {names}.")


def costs(
    wanted: Collection[str],
    here: Mapping[int, Mapping[str, float]],
    base: Mapping[int, Mapping[str, float]],
) -> tuple[Cost, ...]:
    """The lost share of each measure that is limited; if none is, of the first that means any."""
    known = set(next(iter(base.values())))
    prices = (cost(name, here, base) for name in wanted or UTILITY if name in known)
    meant = tuple(price for price in prices if price is not None)
    return meant if wanted else meant[:1]


def cost(
    measure: str,
    here: Mapping[int, Mapping[str, float]],
    base: Mapping[int, Mapping[str, float]],
) -> Cost | None:
    """The lost share, over the seeds of both; None where the base is 0 or a model diverged."""
    seeds = sorted(here.keys() & base.keys())
    mine, other = _values(measure, here, seeds), _values(measure, base, seeds)
    middle = fmean(other)
    if not middle > 0 or not math.isfinite(fmean(mine)):
        return None
    more, less = (other, mine) if UTILITY[measure] == "higher" else (mine, other)
    lost = paired_difference(more, less, seeds, fewest=2)
    scaled = {
        name: None if (end := getattr(lost, name)) is None else end / middle
        for name in ("mean", "low", "high")
    }
    return Cost(
        measure=measure,
        value=fmean(mine) / 100,
        base=middle / 100,
        lost=lost.model_copy(update=scaled),
    )


def _values(
    measure: str, measured: Mapping[int, Mapping[str, float]], seeds: Sequence[int]
) -> list[float]:
    """In percent, as values in [0, 1] would get the interval of hits."""
    return [100 * measured[seed][measure] for seed in seeds]
