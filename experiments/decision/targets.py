"""What a defense has to hold, and what it may cost, as the command line names them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from experiments.analysis.findings import UTILITY
from experiments.analysis.held import RANGES, SHARES, Target
from experiments.analysis.statistics import FEW, clopper_pearson
from fedsim.config.build import registry, suggest
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
    pairs = (_pair(text, "--hold", "rouge1=.2") for text in texts)
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
        name, value = _pair(text, "--lose", "accuracy=.02")
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


def _pair(text: str, flag: str, example: str) -> tuple[str, float]:
    name, _, written = text.partition("=")
    try:
        value = float(written)
    except ValueError:
        value = math.nan
    if not name or not math.isfinite(value):
        raise ConfigError(f"{flag} {text!r}: expected name=number, e.g. {flag} {example}.")
    return name, value


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
