"""What a gate for continuous integration finds open: limits, exact examples and verdicts.

The judge says what was tested: where a word of holding would lack something, no limit holds.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from experiments.analysis.differences import Side
from experiments.analysis.evidence import Verdict
from experiments.analysis.held import Errors, surely
from experiments.analysis.paired import Scored, is_attack, scored
from experiments.report.details import phrase, phrases
from experiments.report.naming import spoken_place
from experiments.report.statements import show_smallest, word_of
from experiments.wording.prose import counted

Compared: TypeAlias = Literal["bound", "mean"]
"""The end of the 95 % interval, or the mean."""
_ERRORS = Errors(0.025, 0.025)


@dataclass(frozen=True, slots=True)
class ScoreLimit:
    """The most that a metric may reach; the least where ``most`` is False."""

    metric: str
    value: float
    most: bool


def broken(
    sides: Iterable[Side],
    limits: Sequence[ScoreLimit],
    *,
    compare: Compared = "bound",
    verbatim: int | None = None,
    smallest: bool = False,
    defense: str | None = None,
) -> Iterator[str]:
    """Every limit that does not hold, a line each; what was not tested does not hold.

    Args:
        sides: the sections of a run, as they are judged.
        limits: on each attack under each defense.
        compare: which number is held to a limit. An interval that is missing holds none.
        verbatim: number of examples under each defense that may come back exactly, by any attack.
        smallest: whether each defense has to be judged to leak no more than the smallest effect.
            That takes an attack which leaks without a defense, so that undefended victims are held
            to it only where nothing else was attacked, or by name.
        defense: the only one that is asked for, by its name in experiment files.
    """
    tested = False
    for side in sides:
        every = [v for v in side.findings.evidence.verdicts if defense in (None, v.defense)]
        known = {
            limit: list(filter(is_attack, scored(side.scores, limit.metric))) for limit in limits
        }
        bare = all(verdict.defense == "none" for verdict in every)
        for verdict in every:
            tested, here = True, f"under {spoken_place(verdict.place)}"
            if limits or verbatim is not None:
                yield from (f"{here}: {phrase(side.findings, why)}" for why in verdict.lacking)
            for limit, attacks in known.items():
                yield from _over(
                    [a for a in attacks if a.place == verdict.place], limit, compare, here
                )
            if verbatim is not None:
                yield from _returned(verdict, verbatim, here)
            if smallest and (bare or verdict.defense != "none"):
                yield from _open(side, verdict, here)
    if not tested:
        yield "no attack was run, so that nothing was tested"


def _over(
    attacks: Sequence[Scored], limit: ScoreLimit, compare: Compared, here: str
) -> Iterator[str]:
    """Attacks on a defense that are over a limit; that there is none which could be."""
    if not attacks:
        yield f"{here}: no attack has a score of {limit.metric}"
    side, than = ("at most", "above") if limit.most else ("at least", "below")
    for attack in attacks:
        value = attack.mean if compare == "mean" else _bound(attack, most=limit.most)
        over = value is not None and (value > limit.value if limit.most else value < limit.value)
        what = f"{attack.attacker.attack} {here}: {limit.metric}"
        if value is None and attack.tried:  # else it is mostly the blind guess
            why = "clients are too few, or too much alike, for a bound"
            yield f"{what} {attack.mean:.3g}, and {why}: pass --compare mean"
        elif over:
            how = f"is {side} {value:.3g} at 95 %" if compare == "bound" else f"{value:.3g}"
            yield f"{what} {how}, {than} {limit.value:g}"


def _bound(attack: Scored, *, most: bool) -> float | None:
    """What the mean is surely at most, or at least where less is worse."""
    if most:
        return surely(attack, _ERRORS)[1]
    turned = {victim: 1 - value for victim, value in attack.values.items()}
    high = surely(replace(attack, values=turned), _ERRORS)[1]
    return None if high is None else 1 - high


def _returned(verdict: Verdict, allowed: int, here: str) -> Iterator[str]:
    """That too many examples are exact, or were certified as exact."""
    false = [why.numbers["false"] for why in verdict.reasons if why.kind == "false_certificates"]
    count = verdict.exact.examples + round(sum(false))
    if count > allowed:
        how = "came back verbatim or certified" if false else "came back verbatim"
        yield f"{here}: {counted(count, 'example')} {how}, above {allowed}"


def _open(side: Side, verdict: Verdict, here: str) -> Iterator[str]:
    """That the word is not ``no leak above X found``, and why."""
    section = side.findings
    if verdict.word not in ("no leak found", "holds by bound"):
        grade = f" ({verdict.grade})" if verdict.word == "leaks" else ""
        why = "".join(f"; {reason}" for reason in phrases(section, verdict))
        asks = f"no leak above {show_smallest(section, verdict)}"
        yield f"{here}: {word_of(section, verdict)}{grade}{why} (asked: {asks})"
