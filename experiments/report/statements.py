"""A verdict as a statement with its numbers: leakage, the null baseline, labels, cost, refusals."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from experiments.analysis.comparison import FEW
from experiments.analysis.evidence import Verdict, Word
from experiments.analysis.findings import MARGINS, UTILITY, TaskFindings
from experiments.analysis.statistics import wilson
from experiments.analysis.verdicts import WORDS
from experiments.report.naming import attack_label, unit_of_main
from experiments.report.tables import Number
from experiments.report.verdict_tables import null_of, number, reached, told_labels, useful
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
        "inconclusive": f"Whether the {them} leak without a defense is undecided.",
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
        "inconclusive": f"Whether {name} holds is undecided.",
        "not attacked": f"{start} was not tested.",
    }[verdict.word]
    adapted = verdict.word == "no leak found" and verdict.adaptive is None
    parts = (
        _detail(section, verdict),
        "No attack was adapted to this defense." if adapted else "",
        cost(section, verdict) if verdict.word in ("no leak found", "inconclusive") else "",
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


def cost(section: TaskFindings, verdict: Verdict) -> str:
    """What the defense does to utility, in a sentence; empty where there is nothing to compare."""
    name = title(section.utility_name or "")
    _, change, epsilon = useful(section, verdict.place)
    spent = f" It spends ε = {show(epsilon.value)}." if epsilon else ""
    if change is None:
        return spent.strip()
    if not math.isfinite(change.value):
        return f"The training diverged.{spent}"
    if change.low is None or change.high is None:
        said = f"The {name} changes by {_signed(change)} in one training."
    elif change.low <= 0 <= change.high:
        said = f"The {name} does not change measurably: {_signed(change)}."
    else:
        said = f"The {name} {'rises' if change.value > 0 else 'falls'}: {_signed(change)}."
    return said + spent


def brief_cost(section: TaskFindings, verdict: Verdict) -> str:
    """The same in a few words, to follow what a defense does; never a claim from one training."""
    name = section.utility_name
    change = useful(section, verdict.place)[1]
    if name is None or change is None or not math.isfinite(change.value):
        return ""
    if change.low is None or change.high is None:
        return f" ({title(name)} {_signed(change)} in one training)"
    if change.low <= 0 <= change.high:
        return f" at no measurable cost in {title(name)}"
    size = show(abs(change.value), change.unit)
    lost = (change.value < 0) == (UTILITY[name] == "higher")
    return f" at a cost of {size} in {title(name)}" if lost else f" while {title(name)} improves"


def _detail(section: TaskFindings, verdict: Verdict) -> str:
    parts = (
        _why_untested(section, verdict)
        if verdict.word == "not attacked"
        else f"{_leakage(section, verdict)} {_doubt(section, verdict)}",
        _labels(section, verdict),
        _refused(verdict),
    )
    return " ".join(" ".join(filter(None, parts)).split())


def _leakage(section: TaskFindings, verdict: Verdict) -> str:
    """What the strongest attack reaches, and what guessing blindly does."""
    if verdict.word == "leaks" and not beats_by_main(verdict):
        return _words(section, verdict)
    name, found = reached(section, verdict.strongest)
    if found is None:
        return ""
    metric, unit = title(section.main), _unit(section)
    null = null_of(section, verdict, verdict.null) if verdict.null else None
    count = recovered(section, verdict)
    whole = f"recovers {count[0]} of {count[1]} {things(section)} and " if count else ""
    against = f", against {show(null.value, null.unit)}{unit} for a blind guess" if null else ""
    mean = show(found.value, found.unit)
    return (
        f"{name[:1].upper()}{name[1:]} {whole}reaches {mean}{unit} of {metric} on average{against}."
    )


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


def _doubt(section: TaskFindings, verdict: Verdict) -> str:
    """Why it is open; or, where no leak was found, what that means."""
    unit = _unit(section)
    if verdict.word == "no leak found":
        margin = show(MARGINS[section.modality], unit_of_main(section))
        skipped = verdict.jobs["skipped"]
        return (
            f"No attack's interval reaches {margin}{unit} above a blind guess, but a stronger "
            "attack may still succeed, and a leak in up to "
            f"{100 * wilson(0, verdict.clients)[1]:.0f} % of clients is not ruled out. "
            f"{f'{_jobs(skipped)} could not attack.' if skipped else ''}"
        )
    if verdict.word != "inconclusive":
        return ""
    broken = verdict.jobs["failed"] + verdict.jobs["timeout"]
    over = number(section, verdict.over_null)
    if over is None:
        return "There is no blind guess to compare it with."
    if verdict.clients < FEW:
        one = verdict.clients == 1
        return f"{'One client is' if one else f'{verdict.clients} clients are'} too few to tell."
    if broken:
        return f"{_jobs(broken)} failed or ran out of time."
    return f"Its lead over a blind guess, {over}{unit}, does not settle it."


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
    return f"No attack could run ({_jobs(skipped)} skipped){reason}. Another one may succeed."


def _labels(section: TaskFindings, verdict: Verdict) -> str:
    told = told_labels(section, verdict)
    if told is None:
        return ""
    return f"The labels leak: {100 * told.value:.0f} % are guessed right."


def _refused(verdict: Verdict) -> str:
    refused = verdict.strongest.refused if verdict.strongest else 0
    if not refused:
        return ""
    return (
        f"It could not attack {refused} of {verdict.victims} victims, which count as blind guesses."
    )


def _signed(change: Number) -> str:
    return f"{'+' if change.value > 0 else ''}{change}"


def _unit(section: TaskFindings) -> str:
    unit = unit_of_main(section)
    return "" if unit == "1" else f" {unit}"


def _jobs(count: int) -> str:
    return f"{count} job{'' if count == 1 else 's'}"
