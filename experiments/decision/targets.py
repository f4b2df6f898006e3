"""What a defense has to hold, and what it costs: the share of undefended utility lost."""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean

from experiments.analysis.findings import UTILITY, learned
from experiments.analysis.held import RANGES, SHARES, Target
from experiments.analysis.statistics import FEW, clopper_pearson, paired_difference
from experiments.decision.answer import Cost
from experiments.plan.cells import Cell
from fedsim.config.build import named_number, registry, suggest
from fedsim.errors import ConfigError
from fedsim.metrics import METRICS
from fedsim.metrics.base import Metric
from fedsim.records import MAIN
from fedsim.tasks.base import Task


def parse_targets(texts: Iterable[str], share: float) -> tuple[Target, ...]:
    """Read ``--hold``, and ``--share`` where no client may be hit.

    Raises:
        ConfigError: nothing is to be held, a metric is unknown or named twice, or a value is not in
            its range.
    """
    pairs = (named_number(text, "--hold", "rouge1=.2") for text in texts)
    targets = tuple(_target(*pair, share) for pair in pairs)
    if not targets:
        raise ConfigError("--hold: nothing is to be held. Write --hold verbatim=0, for example.")
    names = [target.name for target in targets]
    if twice := [name for name in names if names.count(name) > 1]:
        raise ConfigError(f"--hold {twice[0]}: stands there twice. Remove one.")
    return targets


def parse_costs(texts: Iterable[str]) -> dict[str, float]:
    """Read ``--lose``: measure of utility -> share of it that may be lost.

    Raises:
        ConfigError: as ``parse_targets``.
    """
    limits: dict[str, float] = {}
    for text in texts:
        name, value = named_number(text, "--lose", "accuracy=.02")
        if name not in UTILITY:
            raise ConfigError(f"--lose {name}: is no measure of utility. {suggest(name, UTILITY)}")
        if name in limits:
            raise ConfigError(f"--lose {name}: stands there twice. Remove one.")
        if not 0 <= value < 1:
            raise ConfigError(
                f"--lose {text}: is no share of what is reached without a defense. Write one "
                "from 0 to 1, as accuracy=.02 for a fiftieth."
            )
        limits[name] = value
    return limits


def unit_of(target: str) -> str:
    """Unit of a target's values; that of a share is 1."""
    return "1" if target in SHARES else _metrics()[target].unit


def check_task(targets: Sequence[Target], task: Task) -> None:
    """Raise ``ConfigError`` for a metric of another kind of data, or one that is not installed."""
    for target in targets:
        if target.name not in SHARES:
            metric = _metrics()[target.name]()
            if reason := task.unfit(metric):
                raise ConfigError(f"--hold {target.name}: {reason}. Remove it.")
            if reason := metric.available():
                raise ConfigError(f"--hold {target.name}: cannot be computed: {reason}.")


def check_clients(targets: Sequence[Target], error: float, clients: int) -> None:
    """Refuse targets that so few clients can never show, even if none leaks anything.

    Args:
        targets: what is to be held.
        error: of an upper bound.
        clients: that can be attacked.

    Raises:
        ConfigError: with the number that it takes.
    """
    for target in targets:
        needed = clients_needed(target, error)
        if needed > clients:
            of = "" if target.limit else f" --share {target.share:g}"
            what = "value" if target.limit else "share"
            more = f", or hold a greater {what}" if target.name in SHARES else ""
            raise ConfigError(
                f"--hold {target.text()}{of}: {clients} clients cannot show it; if nothing leaks, "
                f"it takes {needed}. Add clients{more}."
            )


def clients_needed(target: Target, error: float) -> int:
    """Fewest clients that show a target where none is hit; of a mean those of an interval."""
    if target.name not in SHARES:
        return FEW
    clients = math.ceil(math.log(error) / math.log1p(-target.passes))
    return clients + (clopper_pearson(0, clients, 2 * error)[1] >= target.passes)


def _metrics() -> dict[str, type[Metric]]:
    return registry(METRICS, "fedsim.metrics")


def _target(name: str, value: float, share: float) -> Target:
    low, high = 0.0, 1.0
    if name not in SHARES:
        known = _metrics()
        if name not in known:
            raise ConfigError(f"--hold {name}: is no metric. {suggest(name, (*known, *SHARES))}")
        low, high = RANGES[known[name].unit]
        if known[name].attacker_wants == "lower":
            low, high = high, low
    inside = 0 < (value - low) / (high - low) < 1 or (name in SHARES and value == 0)
    if not inside:
        ends = sorted((low, high))
        beyond = " Pictures above count as recognisable." if name == MAIN["image"] else ""
        raise ConfigError(
            f"--hold {name}={value:g}: must lie between {ends[0]:g} and {ends[1]:g}.{beyond} "
            "Write another value."
        )
    return Target(name, value, low, high, share)


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
