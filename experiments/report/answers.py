"""The answer to "what leaked, and which defense holds?" in sentences that follow from verdicts.

No sentence claims more than its verdict: what is inconclusive reads as open, an attack that was
skipped is no defense that holds, and one that holds does so only as far as these attacks tell.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from experiments.analysis.evidence import Verdict
from experiments.analysis.findings import TaskFindings
from experiments.analysis.statistics import FEW
from experiments.report.costs import brief_cost
from experiments.report.doubts import mostly_refused
from experiments.report.naming import bare
from experiments.report.statements import (
    Statement,
    defended,
    no_leak,
    recovered,
    things,
    undefended,
)
from experiments.wording.defense_names import defense_name
from experiments.wording.prose import capital, listed

MOST = 3
"""Up to so many defenses of one verdict are named in the answer; of more, the first and how many
follow."""


@dataclass(frozen=True, slots=True)
class SectionAnswer:
    """What one task says in one setting.

    Attributes:
        setting: empty where the task ran in one setting only.
        short: a sentence without its full stop, and without a capital.
        statements: a verdict each, with its numbers; no defense first.
    """

    setting: str
    short: str
    statements: tuple[Statement, ...]


def answers(section: TaskFindings) -> list[SectionAnswer]:
    """One answer for each setting of the task, in order."""
    verdicts = section.evidence.verdicts
    return [
        _answer(section, setting, [verdict for verdict in verdicts if verdict.setting == setting])
        for setting in dict.fromkeys(verdict.setting for verdict in verdicts)
    ]


def overall(sections: Iterable[TaskFindings]) -> str:
    """Which defenses hold in the whole run, judged by the worst verdict on each."""
    worst: dict[str, str] = {}
    for section in sections:
        verdicts = section.evidence.verdicts
        bare = {verdict.setting: verdict.rows for verdict in verdicts if verdict.defense == "none"}
        for verdict in verdicts:
            if verdict.defense != "none":
                name = defense_name(verdict.defense, verdict.defense_options)
                idle = (
                    verdict.word == "no leak found"
                    and bare.get(verdict.setting, "leaks") != "leaks"
                )
                word = _IDLE if idle else _graded(verdict)
                worst[name] = min(worst.get(name, word), word, key=_SEVERITY.index)
    if not worst:
        return "No defense was tested."
    groups = {word: [name for name, w in worst.items() if w == word] for word in _SEVERITY}
    proved, holding, idle_ = (groups[w] for w in ("holds by bound", "no leak found", _IDLE))
    parts = [
        f"{names(proved)} {'holds' if len(proved) == 1 else 'hold'} by bound, whatever the attack"
        if proved
        else "",
        f"{names(holding)} held wherever tested, as far as these attacks tell"
        if holding
        else ""
        if proved
        else "No defense was shown to hold",
        *(f"{said} under {names(groups[word])}" for word, said in _LEAKING.items() if groups[word]),
        f"no leak was found under {names(idle_)}, but none was shown without a defense either"
        if idle_
        else "",
        _unsettled(groups["not decided"]),
        _plural(groups["not attacked"], "was not tested", "were not tested"),
    ]
    return ". ".join(map(capital, filter(None, parts))) + "."


def _graded(verdict: Verdict) -> str:
    return f"leaks: {verdict.grade}" if verdict.word == "leaks" else verdict.word


_IDLE = "nothing to hold"
"""No leak was found under a defense, where none was shown without one."""
_LEAKING = {
    "leaks: verbatim": "private examples come back verbatim",
    "leaks: recognisable": "private examples leak recognisably",
    "leaks: words": "words leak",
    "leaks: better than guessing": "guesses are better than blind ones, and recover none,",
    "labels leak": "the labels leak, and rows are not shown to,",
    "members leak": "members leak, and rows are not shown to,",
}
_SEVERITY: tuple[str, ...] = (
    *_LEAKING,
    "not decided",
    _IDLE,
    "no leak found",
    "holds by bound",
    "not attacked",
)


def names(defenses: Sequence[str]) -> str:
    """``a, b and c``; of many the first three and how many more."""
    if len(defenses) > MOST + 1:
        return f"{', '.join(defenses[:MOST])} and {len(defenses) - MOST} more"
    return listed(defenses)


def certainty(sections: Iterable[TaskFindings], seeds: Collection[int]) -> str:
    """On how many victims, clients and trainings the answers rest, and what they leave open."""
    verdicts = [
        verdict for section in sections for verdict in section.evidence.verdicts if verdict.victims
    ]
    if not verdicts:
        return "No victim was scored, so nothing is known."
    victims, clients = ([getattr(v, n) for v in verdicts] for n in ("victims", "clients"))
    trainings = "one training" if len(seeds) == 1 else f"{len(seeds)} trainings"
    return (
        f"Each verdict rests on {_range(victims)} victims of {_range(clients)} "
        f"client{'' if max(clients) == 1 else 's'}, in {trainings} per defense. Brackets hold 95 % "
        f"intervals over clients. {_FEW_CLIENTS if min(clients) < FEW else ''}"
        f"{_AS_FAR if any(v.rows == 'no leak found' for v in verdicts) else _STRONGER}"
    )


_STRONGER = "Where these attacks fail, a stronger one, or one that knows more, may still succeed."
_AS_FAR = (
    "\N{LEFT DOUBLE QUOTATION MARK}As far as these attacks tell\N{RIGHT DOUBLE QUOTATION MARK} "
    "means that a stronger attack, or one that knows more, may still succeed."
)
_FEW_CLIENTS = (
    f"Fewer than {FEW} clients can show that examples came back exactly, but no mean of theirs "
    "decides anything; only scores that all hit or miss have an interval. "
)


def _range(numbers: Sequence[int]) -> str:
    low, high = min(numbers), max(numbers)
    return str(low) if low == high else f"{low} to {high}"


def _answer(section: TaskFindings, setting: str, verdicts: Sequence[Verdict]) -> SectionAnswer:
    bare = next((verdict for verdict in verdicts if verdict.defense == "none"), None)
    others = [verdict for verdict in verdicts if verdict.defense != "none"]
    clauses = [_without(section, bare)] if bare else []
    for word in _SEVERITY:
        group = [other for other in others if _graded(other) == word]
        if group:
            clauses.append(_under(section, group, bare))
    return SectionAnswer(
        setting=setting,
        short="; ".join(clauses),
        statements=(
            *([undefended(section, bare)] if bare else []),
            *(defended(section, other, bare) for other in others),
        ),
    )


def _without(section: TaskFindings, verdict: Verdict) -> str:
    them, where = things(section), bare(section)
    even = "" if section.foreign else "even "
    labels = ", though the labels leak" if verdict.labels else ""
    members = ", though members leak" if verdict.members else ""
    if verdict.rows == "not attacked":
        return f"no attack could run {even}{where}{members}"
    if verdict.rows == "not decided":
        return f"it is not decided whether the {them} leak {where}{labels}{members}"
    if verdict.rows == "holds by bound":
        return f"no attack can rebuild the {them} {even}{where}{labels}{members}"
    if verdict.rows == "no leak found":
        return f"these attacks recover no {them} {even}{where}{labels}{members}"
    if verdict.grade == "words":
        return "an eavesdropper learns words of the batch, but no whole text is shown to leak"
    count = recovered(section, verdict)
    if verdict.grade == "better than guessing":
        return f"an eavesdropper comes closer to the {them} than a blind guess, but recovers none"
    how = "verbatim" if verdict.grade == "verbatim" else "recognisably"
    if count and count[0]:
        few = 2 * count[0] < count[1] and how != "verbatim"
        rest = ", and on average comes closer to them than a blind guess" if few else ""
        exact = verdict.verbatim.examples
        if how == "verbatim" and exact < count[0]:
            return (
                f"an eavesdropper recovers {count[0]} of {count[1]} {them}, {exact} of them "
                "verbatim"
            )
        return f"an eavesdropper recovers {count[0]} of {count[1]} {them} {how}{rest}"
    examples = (verdict.verbatim if how == "verbatim" else verdict.recovered).examples
    return f"an eavesdropper recovers {examples} of {verdict.victims} {them} {how}"


def _under(section: TaskFindings, group: Sequence[Verdict], bare: Verdict | None) -> str:
    """What is to be said of defenses that share a verdict and a grade."""
    first, lone = group[0], len(group) == 1
    who = names([defense_name(v.defense, v.defense_options) for v in group])
    labels, them = _told(group), things(section)
    if first.word == "not attacked":
        were, it = ("was", "it") if lone else ("were", "them")
        return f"{who} {were} not tested, as no attack could run against {it}"
    if first.word == "members leak":
        return f"under {who} members leak, and the {them} are not shown to"
    if first.rows == "not decided":
        counts = recovered(section, first) if lone else None
        count = f"{counts[0]} of {counts[1]} recovered" if counts and counts[0] else ""
        tried = f"hardly tested{', ' if count else ''}" if all(map(mostly_refused, group)) else ""
        more = f" ({tried}{count})" if tried or count else ""
        open_ = f"it is not decided whether {who} {'hides' if lone else 'hide'} the {them}{more}"
        return f"{open_}, and {labels}" if labels else open_
    if first.word == "leaks":
        if bare is not None and bare.rows == "leaks" and bare.grade != first.grade:
            return f"under {who} {_graded_leak(section, first)}"
        leaking = bare is None or bare.rows == "leaks"
        verb = "does" if lone else "do"
        return (
            f"{who} {verb} not stop it ({first.grade})"
            if leaking
            else f"under {who} {_graded_leak(section, first)}"
        )
    cost = brief_cost(section, first) if lone else ""
    if first.rows == "holds by bound":
        said = f"{who} {'hides' if lone else 'hide'} the {them} from any attack{cost}"
        return f"{said}, but {labels}" if labels else said
    if bare is not None and bare.rows == "no leak found":
        said = f"they find {no_leak(section, first)} under {who} either"
    elif bare is not None and bare.rows != "leaks":
        said = f"these attacks find {no_leak(section, first)} under {who}"
    else:
        hides = f"{who} {'hides' if lone else 'hide'} the {them}{cost}"
        said = f"{hides}, as far as these attacks tell"
    return f"{said}, but {labels}" if labels else said


def _graded_leak(section: TaskFindings, verdict: Verdict) -> str:
    them = things(section)
    return {
        "verbatim": f"{them} come back verbatim",
        "recognisable": f"the {them} leak recognisably",
        "words": "words leak",
    }.get(verdict.grade or "", "guesses are better than blind ones, and recover none")


def _told(group: Sequence[Verdict]) -> str:
    telling = sum(verdict.labels is not None for verdict in group)
    if telling in (0, len(group)):
        return "the labels leak" if telling else ""
    return f"the labels leak under {'one' if telling == 1 else telling} of them"


def _unsettled(defenses: Sequence[str]) -> str:
    hold = "holds" if len(defenses) == 1 else "hold"
    return f"it is not decided whether {names(defenses)} {hold}" if defenses else ""


def _plural(defenses: Sequence[str], singular: str, many: str) -> str:
    return f"{names(defenses)} {singular if len(defenses) == 1 else many}" if defenses else ""
