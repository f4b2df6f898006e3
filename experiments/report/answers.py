"""The answer to "what leaked, and which defense holds?" in sentences that follow from verdicts.

No sentence claims more than its verdict: what is inconclusive reads as open, an attack that was
skipped is no defense that holds, and one that holds does so only as far as these attacks tell.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from experiments.analysis.comparison import FEW
from experiments.analysis.evidence import Verdict
from experiments.analysis.findings import TaskFindings
from experiments.report.costs import brief_cost
from experiments.report.doubts import mostly_refused
from experiments.report.statements import (
    Statement,
    beats_by_main,
    defended,
    listed,
    recovered,
    things,
    undefended,
)
from experiments.wording.defense_names import defense_name

MOST = 3
"""Up to so many defenses of one verdict are named in the answer; of more, the first and how many
follow."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What one task says in one setting.

    Attributes:
        setting: empty where the task ran in one setting only.
        short: a sentence without its full stop, and without a capital.
        statements: a verdict each, with its numbers; no defense first.
    """

    setting: str
    short: str
    statements: tuple[Statement, ...]


def answers(section: TaskFindings) -> list[Answer]:
    """One answer for each setting of the task, in order."""
    verdicts = section.evidence.verdicts
    return [
        _answer(section, setting, [one for one in verdicts if one.setting == setting])
        for setting in dict.fromkeys(one.setting for one in verdicts)
    ]


def overall(sections: Iterable[TaskFindings]) -> str:
    """Which defenses hold in the whole run, judged by the worst verdict on each."""
    worst: dict[str, str] = {}
    labels: dict[str, None] = {}
    for section in sections:
        verdicts = section.evidence.verdicts
        bare = {one.setting: one.word for one in verdicts if one.defense == "none"}
        for one in verdicts:
            if one.defense != "none":
                name = defense_name(one.defense, one.defense_options)
                idle = one.word == "no leak found" and bare.get(one.setting, "leaks") != "leaks"
                word = _IDLE if idle else one.word
                worst[name] = min(worst.get(name, word), word, key=_SEVERITY.index)
                if one.labels:
                    labels[name] = None
    if not worst:
        return "No defense was tested."
    groups = {word: [name for name, w in worst.items() if w == word] for word in _SEVERITY}
    holding, leaking, idle_ = groups["no leak found"], groups["leaks"], groups[_IDLE]
    telling = [name for name in holding if name in labels]
    parts = [
        f"{names(holding)} held wherever tested, as far as these attacks tell"
        if holding
        else "No defense was shown to hold",
        f"labels leak under {names(telling)} all the same" if telling else "",
        f"a leak was found under {names(leaking)}" if leaking else "",
        f"no leak was found under {names(idle_)}, but none was shown without a defense either"
        if idle_
        else "",
        _unsettled(groups["inconclusive"]),
        _plural(groups["not attacked"], "was not tested", "were not tested"),
    ]
    return ". ".join(map(_capital, filter(None, parts))) + "."


_IDLE = "nothing to hold"
"""No leak was found under a defense, where none was shown without one."""
_SEVERITY: tuple[str, ...] = ("leaks", "inconclusive", _IDLE, "no leak found", "not attacked")


def names(defenses: Sequence[str]) -> str:
    """``a, b and c``; of many the first three and how many more."""
    if len(defenses) > MOST + 1:
        return f"{', '.join(defenses[:MOST])} and {len(defenses) - MOST} more"
    return listed(defenses)


def certainty(sections: Iterable[TaskFindings], seeds: Collection[int]) -> str:
    """On how many victims, clients and trainings the answers rest, and what they leave open."""
    verdicts = [one for section in sections for one in section.evidence.verdicts if one.victims]
    if not verdicts:
        return "No victim was scored, so nothing is known."
    victims, clients = ([getattr(v, n) for v in verdicts] for n in ("victims", "clients"))
    trainings = "one training" if len(seeds) == 1 else f"{len(seeds)} trainings"
    return (
        f"Each verdict rests on {_range(victims)} victims of {_range(clients)} "
        f"client{'' if max(clients) == 1 else 's'}, in {trainings} per defense. Brackets hold 95 % "
        f"intervals over clients. {_FEW_CLIENTS if min(clients) < FEW else ''}"
        f"{_AS_FAR if any(v.word == 'no leak found' for v in verdicts) else _STRONGER}"
    )


_STRONGER = "Where these attacks fail, a stronger one, or one that knows more, may still succeed."
_AS_FAR = (
    "\N{LEFT DOUBLE QUOTATION MARK}As far as these attacks tell\N{RIGHT DOUBLE QUOTATION MARK} "
    "means that a stronger attack, or one that knows more, may still succeed."
)
_FEW_CLIENTS = (
    f"Fewer than {FEW} clients can show that there is a leak, but not that there is none, and say "
    "little about other clients. "
)


def _range(numbers: Sequence[int]) -> str:
    low, high = min(numbers), max(numbers)
    return str(low) if low == high else f"{low} to {high}"


def _answer(section: TaskFindings, setting: str, verdicts: Sequence[Verdict]) -> Answer:
    bare = next((one for one in verdicts if one.defense == "none"), None)
    others = [one for one in verdicts if one.defense != "none"]
    clauses = [_without(section, bare)] if bare else []
    for word in ("no leak found", "leaks", "inconclusive", "not attacked"):
        group = [one for one in others if one.word == word]
        if group:
            clauses.append(_under(section, group, bare))
    return Answer(
        setting=setting,
        short="; ".join(clauses),
        statements=(
            *([undefended(section, bare)] if bare else []),
            *(defended(section, one, bare) for one in others),
        ),
    )


def _without(section: TaskFindings, bare: Verdict) -> str:
    them = things(section)
    labels = ", though the labels leak" if bare.labels else ""
    if bare.word == "not attacked":
        return "no attack could run even without a defense"
    if bare.word == "inconclusive":
        return f"it remains open whether the {them} leak without a defense{labels}"
    if bare.word == "no leak found":
        return f"these attacks recover no {them} even without a defense{labels}"
    if not beats_by_main(bare):
        return "an eavesdropper learns words of the batch, but no whole text is shown to leak"
    count = recovered(section, bare)
    if count and count[0]:
        few = 2 * count[0] < count[1]
        rest = ", and on average comes closer to them than a blind guess" if few else ""
        return f"an eavesdropper recovers {count[0]} of {count[1]} {them}{rest}"
    return f"an eavesdropper comes closer to the {them} than a blind guess, but recovers none"


def _under(section: TaskFindings, group: Sequence[Verdict], bare: Verdict | None) -> str:
    """What is to be said of defenses that share a verdict."""
    word, one = group[0].word, len(group) == 1
    who = names([defense_name(v.defense, v.defense_options) for v in group])
    labels = _told(group)
    if word == "not attacked":
        were, it = ("was", "it") if one else ("were", "them")
        return f"{who} {were} not tested, as no attack could run against {it}"
    if word == "inconclusive":
        found = recovered(section, group[0]) if one else None
        count = f"{found[0]} of {found[1]} recovered" if found and found[0] else ""
        tried = f"hardly tested{', ' if count else ''}" if all(map(mostly_refused, group)) else ""
        more = f" ({tried}{count})" if tried or count else ""
        doubt = (
            f"it remains open whether {who} {'hides' if one else 'hide'} the {things(section)}"
            f"{more}"
        )
        return f"{doubt}, and {labels}" if labels else doubt
    if word == "leaks":
        leaking = bare is None or bare.word == "leaks"
        verb = "does" if one else "do"
        return f"{who} {verb} not stop it" if leaking else f"under {who} the {_what(group)} leak"
    cost = brief_cost(section, group[0]) if one else ""
    if bare is not None and bare.word == "no leak found":
        said = f"they find no leak under {who} either"
    elif bare is not None and bare.word != "leaks":
        said = f"these attacks find no leak under {who}"
    else:
        hides = f"{who} {'hides' if one else 'hide'} the {things(section)}{cost}"
        tried = " (hardly tested)" if all(map(mostly_refused, group)) else ""
        said = f"{hides}, as far as these attacks tell{tried}"
    return f"{said}, but {labels}" if labels else said


def _told(group: Sequence[Verdict]) -> str:
    telling = sum(verdict.labels is not None for verdict in group)
    if telling in (0, len(group)):
        return "the labels leak" if telling else ""
    return f"the labels leak under {'one' if telling == 1 else telling} of them"


def _what(group: Sequence[Verdict]) -> str:
    return "private data" if all(map(beats_by_main, group)) else "words"


def _unsettled(defenses: Sequence[str]) -> str:
    hold = "holds" if len(defenses) == 1 else "hold"
    return f"it remains open whether {names(defenses)} {hold}" if defenses else ""


def _plural(defenses: Sequence[str], one: str, many: str) -> str:
    return f"{names(defenses)} {one if len(defenses) == 1 else many}" if defenses else ""


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
