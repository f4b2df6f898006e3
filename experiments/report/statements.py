"""A verdict as a statement with its numbers: leakage, the null baseline, labels, cost, refusals."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from experiments.analysis.evidence import Verdict, Word
from experiments.analysis.findings import TaskFindings
from experiments.analysis.verdicts import WORDS
from experiments.report.costs import cost
from experiments.report.doubts import doubt, jobs, refused, tested, unit_after
from experiments.report.naming import attack_label
from experiments.report.verdict_tables import null_of, reached, told_labels
from experiments.wording.defense_names import defense_name
from experiments.wording.names import show, title

_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class Statement:
    """What the attacks show under one defense.

    Attributes:
        lead: the verdict as a sentence.
        detail: the numbers that it rests on, in sentences.
    """

    word: Word
    lead: str
    detail: str


def undefended(section: TaskFindings, verdict: Verdict) -> Statement:
    """What the attacks show where nothing is in their way."""
    them = things(section)
    lead = {
        "leaks": f"Without a defense the {them} leak."
        if beats_by_main(verdict)
        else "Without a defense words leak, though no whole text is shown to.",
        "no leak found": "Without a defense these attacks find no leak.",
        "inconclusive": f"Inconclusive: whether the {them} leak without a defense is not "
        "settled by these attacks.",
        "not attacked": f"Whether the {them} leak without a defense was not tested.",
    }[verdict.word]
    return Statement(verdict.word, lead, _detail(section, verdict))


def defended(section: TaskFindings, verdict: Verdict, bare: Verdict | None) -> Statement:
    """What the attacks show under a defense, and what it costs."""
    name = defense_name(verdict.defense, verdict.defense_options)
    start = name[:1].upper() + name[1:]
    leaking = bare is None or bare.word == "leaks"
    lead = {
        "leaks": f"{start} does not stop the leak."
        if beats_by_main(verdict)
        else f"{start} does not keep the words of the batch from leaking.",
        "no leak found": f"{start} holds, as far as these attacks tell."
        if leaking
        else f"{start}: no leak found, but none was shown without a defense either.",
        "inconclusive": f"Inconclusive: whether {name} holds is not settled by these attacks.",
        "not attacked": f"{start} was not tested.",
    }[verdict.word]
    open_ = verdict.word in ("no leak found", "inconclusive")
    adapted = open_ and verdict.strongest is not None and verdict.adaptive is None
    parts = (
        tested(section, verdict, bare),
        _detail(section, verdict),
        "No attack was adapted to this defense." if adapted else "",
        cost(section, verdict) if open_ else "",
    )
    return Statement(verdict.word, lead, " ".join(filter(None, parts)))


def things(section: TaskFindings) -> str:
    """What the private examples are."""
    return "images" if section.modality == "image" else "texts"


def beats_by_main(verdict: Verdict) -> bool:
    """Whether the strongest attack beats its null baselines by the main metric, not by words."""
    low = verdict.over_null.low if verdict.over_null else None
    return verdict.word == "leaks" and low is not None and low > _ROUNDING


def recovered(section: TaskFindings, verdict: Verdict) -> tuple[int, int] | None:
    """How many victims the strongest attack recovers, of how many; None without a threshold."""
    strongest = verdict.strongest
    result = section.result(verdict.place, strongest.attacker) if strongest else None
    found = result.leakage.get(section.main) if result else None
    if found is None or found.share is None:
        return None
    return round(found.share.value * found.n), verdict.victims


def listed(words: Sequence[str]) -> str:
    """``a, b and c``."""
    return " and ".join(filter(None, (", ".join(words[:-1]), *words[-1:])))


def _detail(section: TaskFindings, verdict: Verdict) -> str:
    parts = (
        _why_untested(section, verdict)
        if verdict.word == "not attacked"
        else f"{_leakage(section, verdict)} {doubt(section, verdict)}",
        _labels(section, verdict),
        refused(section, verdict),
    )
    return " ".join(" ".join(filter(None, parts)).split())


def _leakage(section: TaskFindings, verdict: Verdict) -> str:
    """What the strongest attack reaches, and what guessing blindly does."""
    if verdict.word == "leaks" and not beats_by_main(verdict):
        return _words(section, verdict)
    name, found = reached(section, verdict.strongest)
    if found is None:
        return ""
    metric, unit = title(section.main), unit_after(section)
    null = null_of(section, verdict, verdict.null) if verdict.null else None
    count = recovered(section, verdict)
    whole = f"recovers {count[0]} of {count[1]} {things(section)} and " if count else ""
    against = f", against {show(null.value, null.unit)}{unit} for a blind guess" if null else ""
    mean = show(found.value, found.unit)
    return f"{name[:1].upper()}{name[1:]} {whole}reaches a mean {metric} of {mean}{unit}{against}."


def _words(section: TaskFindings, verdict: Verdict) -> str:
    """How many words of a batch an attack names, which can leak without their order."""
    results = [section.result(verdict.place, attacker) for attacker in verdict.beating]
    known = [one for one in results if one is not None and set(WORDS) <= one.leakage.keys()]
    if not known:
        return ""
    best = max(known, key=lambda one: min(one.leakage[name].mean for name in WORDS))
    precision, recall = (f"{100 * best.leakage[name].mean:.0f} %" for name in WORDS)
    name = attack_label(section, best.attacker)
    return (
        f"{name[:1].upper()}{name[1:]} names {recall} of the words of a batch, and {precision} of "
        "those that it names are right."
    )


def _why_untested(section: TaskFindings, verdict: Verdict) -> str:
    skipped = verdict.jobs["skipped"]
    if not skipped:
        return "No attack was run."
    reasons = [
        problem.reason
        for result in section.results
        if result.place == verdict.place and result.control == "none"
        for problem in result.problems
        if problem.status == "skipped"
    ]
    reason = re.split(r"[;.]\s", reasons[0], maxsplit=1)[0].rstrip(".") if reasons else ""
    reason = f": {reason[:120]}" if reason else ""
    return f"No attack could run ({jobs(skipped)} skipped){reason}. Another attack may succeed."


def _labels(section: TaskFindings, verdict: Verdict) -> str:
    told = told_labels(section, verdict)
    if told is None:
        return ""
    name = attack_label(section, verdict.labels)
    return f"The labels leak: {name} infers {100 * told.value:.0f} % of them."
