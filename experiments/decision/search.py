"""The search for the weakest strength that holds: bisection, with a test at each strength.

At a strength clients are attacked in groups. After each group every attack and target has a bound
from below and one from above, by ``experiments.decision.sequence``, and

- it *leaks* once a lower bound is above a target, or any score is above a target of 0;
- it *holds* once all upper bounds are below all targets, also those of the clients that an attack
  did not refuse;
- it stays *open* if the clients run out first.

Errors are shared so that all strengths together are wrong with at most the error asked for. Of a
false *leaks* any attack may be guilty at any strength: error / (strengths * attacks * targets). A
false *holds* takes an upper bound that is wrong for the one pair of attack and target that leaks:
error / strengths, as in an intersection-union test (Berger 1982).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol, TypeAlias

from experiments.decision.sequence import BETTING, EXACT, Bound
from experiments.decision.targets import SHARES, Target

Word: TypeAlias = Literal["leaks", "holds", "open"]


class Score(NamedTuple):
    """What an attack got from one client, rescaled.

    Attributes:
        value: over all its examples, those that the attack refused counting as guessed blindly.
        answered: over those that it did not refuse; None if there are none.
    """

    value: float
    answered: float | None


class Trial(Protocol):
    """Attacks at one strength."""

    def attack(
        self, attacks: Collection[str], clients: Sequence[int]
    ) -> Mapping[str, Mapping[str, Sequence[Score]]]:
        """Attack further clients: attack -> target -> score of each client with rows of its own."""

    def faults(self) -> str:
        """What keeps an absence of leaks from being shown, such as failed jobs; else empty."""


@dataclass(frozen=True, slots=True)
class Errors:
    """Errors of one bound.

    Attributes:
        leaks: of a lower bound.
        holds: of an upper bound.
    """

    leaks: float
    holds: float

    @classmethod
    def shared(cls, error: float, sizes: Sequence[int], attacks: int, targets: int) -> Errors:
        """So that each of the two words is wrong anywhere with at most ``error``.

        Which strengths are tried depends on the same clients, so that *leaks* shares its error
        among all there are; *holds* among those that a search may end at.
        """
        return cls(error / ((sum(sizes) + 1) * attacks * targets), error / strengths_tried(sizes))


@dataclass(frozen=True, slots=True)
class MeanBounds:
    """What is known of one attack and target, rescaled.

    Attributes:
        clients: attacked so far.
        mean: of their scores.
        low: surely at least.
        high: surely at most.
    """

    clients: int
    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class Decision:
    """The word at one strength.

    Attributes:
        attack: of a leak, the attack that shows it; else that with the highest upper bound.
        target: name of the target that leaks, or is nearest to.
        bounds: attack -> target -> what is known.
        clients: attacked with at least one attack.
        reason: why it is open although all bounds are below the targets; else empty.
    """

    word: Word
    attack: str
    target: str
    bounds: Mapping[str, Mapping[str, MeanBounds]]
    clients: int
    reason: str = ""


@dataclass
class _Scores:
    """Scores of one attack, by target."""

    by_target: dict[str, list[Score]] = field(default_factory=dict)

    def bounds(self, errors: Errors, *, every: bool) -> dict[str, MeanBounds]:
        return {
            name: _bounds(scores, errors, EXACT if every and name in SHARES else BETTING)
            for name, scores in self.by_target.items()
            if scores
        }


def _bounds(scores: Sequence[Score], errors: Errors, bound: Bound = BETTING) -> MeanBounds:
    """Bounds of one mean; the upper one is no lower than that of the clients not refused.

    Blind guesses in the place of refused clients would hide what the others leak. An attack that
    refused most says as much only where these surely leak.
    """
    values = [score.value for score in scores]
    high = bound.upper(values, errors.holds)
    answered = [score.answered for score in scores if score.answered is not None]
    if answered != values:
        tried = 2 * len(answered) >= len(values)
        side, error = (bound.upper, errors.holds) if tried else (bound.lower, errors.leaks)
        high = max(high, side(answered, error))
    low = bound.lower(values, errors.leaks)
    return MeanBounds(len(values), sum(values) / len(values), low, high)


def decide(
    trial: Trial,
    attacks: Sequence[str],
    targets: Sequence[Target],
    clients: Sequence[int],
    errors: Errors,
    group: int,
    *,
    every: bool = False,
) -> Decision:
    """Attack group after group until a word is sure. An attack below all targets is not gone on.

    Args:
        trial: runs the attacks.
        attacks: their labels.
        targets: what is to be held.
        clients: in the order in which they are attacked; drawn like any others.
        errors: of one bound.
        group: clients attacked between two looks.
        every: attack all clients, and then look once.
    """
    group = max(1, len(clients)) if every else group
    scores = {attack: _Scores() for attack in attacks}
    bounds: dict[str, dict[str, MeanBounds]] = {}
    pending, used = list(attacks), 0
    for start in range(0, len(clients), group):
        some = clients[start : start + group]
        used += len(some)
        for attack, by_target in trial.attack(pending, some).items():
            for name, values in by_target.items():
                scores[attack].by_target.setdefault(name, []).extend(values)
            bounds[attack] = scores[attack].bounds(errors, every=every)
        if leak := _leak(bounds, targets):
            return Decision("leaks", *leak, bounds, used)
        pending = [attack for attack in pending if not _below(bounds[attack], targets)]
        if not pending:
            break
    attack, name = _nearest(bounds, targets)
    reason = trial.faults()
    word: Word = "open" if pending or reason else "holds"
    return Decision(word, attack, name, bounds, used, reason)


def _leak(
    bounds: Mapping[str, Mapping[str, MeanBounds]], targets: Sequence[Target]
) -> tuple[str, str] | None:
    """The attack and the target that leaks most surely."""
    over = {
        (attack, target.name): by_target[target.name].low - target.limit
        for attack, by_target in bounds.items()
        for target in targets
        if by_target[target.name].low > target.limit
        or by_target[target.name].mean > target.limit == 0  # a single score refutes a mean of 0
    }
    return max(over, key=lambda key: over[key]) if over else None


def _below(by_target: Mapping[str, MeanBounds], targets: Sequence[Target]) -> bool:
    return all(by_target[target.name].high < target.passes for target in targets)


def _nearest(
    bounds: Mapping[str, Mapping[str, MeanBounds]], targets: Sequence[Target]
) -> tuple[str, str]:
    near = {
        (attack, target.name): by_target[target.name].high - target.passes
        for attack, by_target in bounds.items()
        for target in targets
    }
    return max(near, key=lambda key: near[key])


def looks(strengths: int) -> int:
    """How many of so many strengths a bisection tries at most."""
    return strengths.bit_length()


def strengths_tried(sizes: Iterable[int]) -> int:
    """Most strengths at which a bisection looks, in families of these sizes; and no defense."""
    return sum(map(looks, sizes)) + 1


def weakest(strengths: int, word: Callable[[int, bool], Word]) -> int | None:
    """The weakest strength that holds by every client; None if none was shown to.

    What a bisection takes for it, by few clients, is asked again by all. Where these take the word
    back the search goes on above, at most as often as a bisection looks.

    Args:
        strengths: how many there are.
        word: on one of them, by number, by as many clients as it takes or by every one.
    """

    def searched(index: int) -> Word:
        return word(index, False)

    chosen = bisect(strengths, searched)
    for _ in range(looks(strengths)):
        if chosen is None or word(chosen, True) == "holds":
            return chosen
        chosen = bisect(strengths, searched, above=chosen)
    return None


def bisect(strengths: int, word: Callable[[int], Word], above: int = -1) -> int | None:
    """The weakest strength that was found to hold, by number; None if none was.

    Assumes that what holds does so at every greater strength. What is open does not hold.

    Args:
        strengths: how many there are.
        word: on one of them, by number.
        above: only those above this one are searched.
    """
    low, high = above, strengths
    while high - low > 1:
        middle = (low + high) // 2
        if word(middle) == "holds":
            high = middle
        else:
            low = middle
    return high if high < strengths else None
