"""What a defense has to hold, and what it may cost, as the command line names them."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from experiments.analysis.findings import UTILITY
from experiments.analysis.portfolio import MOST_CLIENTS
from experiments.bounds.information import CERTAIN, most
from experiments.decision.sequence import BETTING, EXACT
from experiments.stages.coverage import THRESHOLDS
from fedsim.build import registry, suggest
from fedsim.errors import ConfigError
from fedsim.metrics import METRICS
from fedsim.metrics.base import Metric
from fedsim.tasks.base import Task

SHARES = ("verbatim", "recognisable")
"""Targets that count clients: those with an example that came back exactly, or passed 25 dB or .9
ROUGE-L, where a blind guess did not."""
RARE = 0.25
"""No number of clients shows that a share is 0. A search goes on from a strength as from one that
holds if no client is hit and the share is surely below this: 22 clients for one family of 15
strengths. What it chooses is then tested by every client for the share that was asked. Halved, 45
are attacked at each strength that seems to hold; doubled, every second search has to go on."""
CAP = THRESHOLDS["psnr"]
"""In dB. Pictures from here on are recognisable and count alike."""
_RANGES = {
    "1": (0.0, 1.0),
    "dB": (0.0, CAP),
    "squared pixel": (0.0, 1.0),
    "points": (0.0, 100.0),
}
"""Unit -> the range that scores are cut to. Pictures from 25 dB on are recognisable and count
alike; to tell 30 dB from 40 would take three times the clients at 18 dB."""


@dataclass(frozen=True, slots=True)
class Target:
    """A mean, or a share of clients, that leakage must stay beyond.

    Scores are rescaled so that 0 is no leakage and 1 is all that the range has.

    Attributes:
        name: the metric, or one of ``SHARES``.
        value: the limit, in units of the metric.
        low: no leakage, in units of the metric.
        high: full leakage; below ``low`` where less is worse, as for an error.
        share: largest share of hit clients where none is hit, for a target of 0.
    """

    name: str
    value: float
    low: float = 0.0
    high: float = 1.0
    share: float = RARE

    @property
    def limit(self) -> float:
        """The rescaled limit, above which the target leaks."""
        return self.scaled(self.value)

    @property
    def passes(self) -> float:
        """The rescaled value that the upper bound has to be below."""
        return self.limit or self.share

    @property
    def searched(self) -> Target:
        """The same as it is asked of the few clients of a search."""
        return replace(self, share=max(self.share, RARE))

    def scaled(self, value: float) -> float:
        """A value of the metric in [0, 1]."""
        return min(1.0, max(0.0, (value - self.low) / (self.high - self.low)))

    def shown(self, scaled: float) -> float:
        """The value of the metric that was rescaled."""
        return self.low + scaled * (self.high - self.low)

    def bound(self, blind: float, nats: float) -> float | None:
        """Mean that no attack exceeds, in units of the metric; None where that says nothing.

        Args:
            blind: rescaled mean of the best guess without a reply.
            nats: the most that a reply tells of an example.
        """
        highest = most(blind, nats) if blind > 0 and math.isfinite(nats) else 1.0
        return self.shown(highest) if highest < CERTAIN else None

    def text(self) -> str:
        """As on the command line."""
        return f"{self.name}={self.value:g}"


def parse_targets(texts: Iterable[str], share: float) -> tuple[Target, ...]:
    """Read ``--hold``, and ``--share`` where no client may be hit.

    Raises:
        ConfigError: nothing is to be held, a metric is unknown or named twice, or a value is not in
            its range.
    """
    pairs = (_pair(text, "--hold", "rouge1=.2") for text in texts)
    targets = tuple(replace(_target(*pair), share=share) for pair in pairs)
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


def whole_range(metric: str) -> Target:
    """A metric in its range, without a limit that its scores could pass."""
    low, high = _range(metric)
    return Target(metric, high, low, high)


def check_task(targets: Sequence[Target], task: Task) -> None:
    """Raise ``ConfigError`` for a metric of another kind of data, or one that is not installed."""
    for target in targets:
        if target.name not in SHARES:
            metric = _metrics()[target.name]()
            if reason := task.unfit(metric):
                raise ConfigError(f"--hold {target.name}: {reason}. Remove it.")
            if reason := metric.available():
                raise ConfigError(f"--hold {target.name}: cannot be computed: {reason}.")


def _metrics() -> dict[str, type[Metric]]:
    return registry(METRICS, "fedsim.metrics")


def _range(metric: str) -> tuple[float, float]:
    """From no leakage to full leakage."""
    known = _metrics()[metric]
    low, high = _RANGES[known.unit]
    return (high, low) if known.attacker_wants == "lower" else (low, high)


def _pair(text: str, flag: str, example: str) -> tuple[str, float]:
    name, _, written = text.partition("=")
    try:
        value = float(written)
    except ValueError:
        value = math.nan
    if not name or not math.isfinite(value):
        raise ConfigError(f"{flag} {text!r}: expected name=number, e.g. {flag} {example}.")
    return name, value


def _target(name: str, value: float) -> Target:
    if name in SHARES:
        low, high = 0.0, 1.0
    else:
        known = _metrics()
        if name not in known:
            names = (*known, *SHARES)
            raise ConfigError(f"--hold {name}: is no metric. {suggest(name, names)}")
        low, high = _range(name)
    target = Target(name, value, low, high)
    inside = 0 < (value - low) / (high - low) < 1 or (name in SHARES and value == 0)
    if not inside:
        ends = sorted((low, high))
        beyond = " Pictures above count as recognisable." if high == THRESHOLDS["psnr"] else ""
        raise ConfigError(
            f"--hold {name}={value:g}: must lie between {ends[0]:g} and {ends[1]:g}.{beyond} "
            "Write another value."
        )
    return target


def clients_needed(target: Target, score: float, error: float) -> int:
    """Fewest clients that show a target where each has this score, or ``MOST_CLIENTS`` if more.

    Args:
        target: what is to be held.
        score: of each client, rescaled; below ``target.passes``.
        error: of an upper bound.
    """
    bound = EXACT if target.name in SHARES else BETTING

    def shows(clients: int) -> bool:
        return bound.upper([score] * clients, error) < target.passes

    most = 1
    while most < MOST_CLIENTS and not shows(most):
        most *= 2
    return min(bisect_left(range(most // 2, most), True, key=shows) + most // 2, MOST_CLIENTS)


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
        needed = clients_needed(target, 0.0, error)
        if needed > clients:
            of = "" if target.limit else f" --share {target.share:g}"
            what = "value" if target.limit else "share"
            raise ConfigError(
                f"--hold {target.text()}{of}: {clients} clients cannot show it; if nothing leaks, "
                f"it takes {needed}. Add clients, or hold a greater {what}."
            )
