"""Whether attacks stay below what was asked: the rule of each strength of ``fedsim calibrate``.

A target is a mean over clients, or a share of clients with an example that came back. It

- *leaks* where a lower bound, of the share or of some attack's mean, is above it;
- *holds* where every upper bound is below it, also that of the clients that an attack did not
  refuse, and nothing is lacking for a word of holding (``Evidence.lacking``);
- is *open* otherwise.

Hits are those of ``experiments.analysis.hits``, intervals those of ``.statistics``, of scores that
are rescaled to [0, 1].
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, TypeAlias

from experiments.analysis.evidence import Reason
from experiments.analysis.hits import Bar, owners
from experiments.analysis.paired import Scored, estimate, is_attack
from experiments.analysis.portfolio import blind_guess
from experiments.analysis.verdicts import Evidence
from experiments.stages.coverage import THRESHOLDS
from fedsim.records import AttackKey

SHARES = ("verbatim", "recognisable")
"""Targets that count clients: those with an example that came back exactly, or passed 25 dB or .9
ROUGE-L, where no guess without its update comes near."""
CAP = THRESHOLDS["psnr"]
"""In dB. Pictures from here on are recognisable and count alike; to tell 30 dB from 40 would take
three times the clients at 18 dB."""
RANGES = {
    "1": (0.0, 1.0),
    "dB": (0.0, CAP),
    "squared pixel": (0.0, 1.0),
    "points": (0.0, 100.0),
}
"""Unit -> the range that scores are cut to."""
HeldWord: TypeAlias = Literal["leaks", "holds", "open"]


@dataclass(frozen=True, slots=True)
class Target:
    """A mean, or a share of clients, that leakage must stay beyond.

    Attributes:
        name: the metric, or one of ``SHARES``.
        value: the limit, in units of the metric.
        low: no leakage, in units of the metric.
        high: full leakage; below ``low`` where less is worse, as for an error.
        share: largest share of clients that may be hit where none is, for a target of 0.
    """

    name: str
    value: float
    low: float = 0.0
    high: float = 1.0
    share: float = 0.1

    @property
    def bar(self) -> Bar:
        """What a share of clients has to pass."""
        return "verbatim" if self.name == "verbatim" else "recognisable"

    @property
    def limit(self) -> float:
        """The rescaled limit, above which the target leaks."""
        return self.scaled(self.value)

    @property
    def passes(self) -> float:
        """The rescaled value that the upper bound has to be below."""
        return self.limit or self.share

    def scaled(self, value: float) -> float:
        """A value of the metric in [0, 1], where 1 is full leakage."""
        return min(1.0, max(0.0, (value - self.low) / (self.high - self.low)))

    def shown(self, scaled: float) -> float:
        """The value of the metric that was rescaled."""
        return self.low + scaled * (self.high - self.low)

    def text(self) -> str:
        """As on the command line."""
        return f"{self.name}={self.value:g}"


class Errors(NamedTuple):
    """One-sided errors of one bound.

    Attributes:
        leaks: of a lower bound.
        holds: of an upper bound.
    """

    leaks: float
    holds: float


class Level(NamedTuple):
    """What the attacks come to by one target, rescaled.

    Attributes:
        attack: with the highest upper bound, or the most clients hit; None where all refused.
        clients: with a score.
        mean: of these clients, or the share of them that is hit.
        low: surely at least, by any attack.
        high: surely at most, by every attack.
        blind: mean of the blind guess; None where none was made.
    """

    target: Target
    attack: AttackKey | None
    clients: int
    mean: float
    low: float
    high: float
    blind: float | None

    @property
    def leaks(self) -> bool:
        """Whether the target is surely passed."""
        return self.low > self.target.limit

    @property
    def holds(self) -> bool:
        """Whether it is surely not; a share of none is passed by a single client."""
        nobody = self.target.limit > 0 or self.mean == 0
        return nobody and self.high < self.target.passes


class Held(NamedTuple):
    """The word on one defense.

    Attributes:
        level: of the target that leaks most surely, or is nearest to its limit.
        levels: of all targets.
        reasons: what keeps it open though every upper bound is below.
    """

    word: HeldWord
    level: Level
    levels: tuple[Level, ...]
    reasons: tuple[Reason, ...]


def hold(seen: Evidence, targets: Sequence[Target], errors: Errors) -> Held:
    """The word on one defense.

    Args:
        seen: what is known of it, the metrics of the targets included.
        targets: what is to be held, one at least.
        errors: of each bound.
    """
    levels = levels_of(seen, targets, errors)
    leaking = [level for level in levels if level.leaks]
    if leaking:
        worst = max(leaking, key=lambda level: level.low - level.target.limit)
        return Held("leaks", worst, levels, ())
    nearest = max(levels, key=lambda level: level.high - level.target.passes)
    holds = all(level.holds for level in levels) and not seen.lacking
    return Held("holds" if holds else "open", nearest, levels, seen.lacking)


def levels_of(seen: Evidence, targets: Sequence[Target], errors: Errors) -> tuple[Level, ...]:
    """What the attacks come to by each target."""
    return tuple(
        _share(target, seen, errors)
        if target.name in SHARES
        else _mean(target, seen.here[target.name], errors)
        for target in targets
    )


def surely(attack: Scored, errors: Errors) -> tuple[float | None, float | None]:
    """What a mean over clients is surely at least, and at most; None without a bound.

    Blind guesses in the place of refused victims would hide what the others leak, so that the
    upper bound is no less than theirs. An attack that refused most says as much only where these
    surely leak.
    """
    low, high = (_end(attack, errors.leaks)[0], _end(attack, errors.holds)[1])
    if not attack.refused or high is None:
        return low, high
    if not attack.tried:
        return low, max(high, _end(attack.answered, errors.leaks)[0] or high)
    answered = _end(attack.answered, errors.holds)[1]
    return low, None if answered is None else max(high, answered)


def _end(attack: Scored, error: float) -> tuple[float | None, float | None]:
    """Both one-sided bounds at an error; examples of one client say nothing of others."""
    known = estimate(attack.values, error=2 * error) if attack.values else None
    if known is None or known.interval_of != "clients":
        return None, None
    return known.low, known.high


def _mean(target: Target, here: Sequence[Scored], errors: Errors) -> Level:
    scaled = [
        replace(attempt, values={v: target.scaled(x) for v, x in attempt.values.items()})
        for attempt in here
    ]
    blind = blind_guess(scaled)
    guess = blind.mean if blind else None
    each = []
    for attack in filter(is_attack, scaled):
        low, high = surely(attack, errors)
        ends = 0.0 if low is None else low, 1.0 if high is None else high
        clients = len(owners(attack.values))
        each.append(Level(target, attack.attacker, clients, attack.mean, *ends, guess))
    if not each:
        return Level(target, None, 0, 0.0, 0.0, 1.0, guess)
    worst = max(each, key=lambda level: (level.high, level.mean))
    return worst._replace(low=max(level.low for level in each))


def _share(target: Target, seen: Evidence, errors: Errors) -> Level:
    known = seen.hits(seen.attacks, target.bar)
    sure = seen.clients(known.counted(errors.leaks), errors.leaks)
    most = seen.clients(known.alone | known.proven, errors.holds)
    by_hits = max(
        seen.attacks, key=lambda attack: len(seen.hits([attack], target.bar).hit), default=None
    )
    return Level(
        target=target,
        attack=by_hits.attacker if by_hits else None,
        clients=most.of,
        mean=most.hit / most.of if most.of else 0.0,
        low=sure.low,
        high=most.high,
        blind=None,
    )
