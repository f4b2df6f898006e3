"""The numbers behind a verdict, and the reasons why it is not another one, a sentence each."""

import math
from collections.abc import Iterator, Mapping
from textwrap import shorten

from experiments.analysis.evidence import Reason, Verdict
from experiments.analysis.findings import Problem, Result, TaskFindings
from experiments.analysis.keys import DefenseInSetting
from experiments.analysis.membership import METRICS
from experiments.analysis.verdicts import WORDS
from experiments.report.naming import (
    attack_label,
    label_accuracy,
    null_of,
    number,
    reached,
    things,
    unit_of_main,
)
from experiments.report.tables import Number
from experiments.wording.catalogue import Said, say, sentence
from experiments.wording.names import title
from experiments.wording.prose import capital, counted, listed
from fedsim.records import MAIN, OTHER_CLIENT, PRIOR_ONLY, AttackKey

BASELINES = {PRIOR_ONLY: "prior only", OTHER_CLIENT: "another client's update"}


def phrases(section: TaskFindings, verdict: Verdict) -> tuple[str, ...]:
    """Every reason, for a table."""
    return tuple(str(phrase(section, reason)) for reason in verdict.reasons)


def phrase(section: TaskFindings, reason: Reason) -> Said:
    """One reason, as a clause without its full stop."""
    who = attack_label(section, reason.attack) if reason.attack else "the best attack"
    return clause(reason, who, unit_of_main(section))


def clause(reason: Reason, who: str, unit: str) -> Said:
    """The same by the name of its attack and the unit of the main metric."""
    return Said(f"why.{variant(reason)}", _facts(reason, who, unit))


def variant(reason: Reason) -> str:
    """The kind of a reason, and what else its sentence depends on."""
    numbers = reason.numbers
    variants = {
        "unrun": ("", ".nothing")[not numbers],
        "no_null": ("", ".other_client")[reason.baseline == OTHER_CLIENT],
        "wide": ("", ".never")[math.isinf(numbers.get("needed", 0.0))],
        "beats_one": ("", ".metric")[not reason.baseline],
        "answered": ("", ".alone")["mean" not in numbers],
        "members": ("", ".lost")[bool(numbers.get("lost"))],
    }
    return f"{reason.kind}{variants.get(reason.kind, '')}"


def _facts(reason: Reason, who: str, unit: str) -> Mapping[str, object]:
    numbers, main = reason.numbers, reason.metric in MAIN.values()
    mean = numbers.get("mean", math.nan)
    interval = Number(
        mean, unit if main or not reason.metric else "1", numbers.get("low"), numbers.get("high")
    )
    other = next((name for kind, name in BASELINES.items() if kind != reason.baseline), "")
    return {
        **numbers,
        **{noun: counted(numbers.get(noun, 0), noun[:-1]) for noun in ("clients", "jobs")},
        "members": counted(numbers.get("members", 0), "member"),
        "jobs_by_status": ", ".join(f"{count:.0f} {status}" for status, count in numbers.items()),
        "who": who,
        "baseline": BASELINES.get(reason.baseline, ""),
        "other": other,
        "name": title(reason.metric),
        "measure": METRICS.get(reason.metric, ""),
        "metric": "" if main else f"{title(reason.metric)}: ",
        "interval": interval.said,
        "lead": Number(mean, unit).said,
        "less": Number(-mean, unit).said,
        "excess_said": Number(numbers.get("excess", math.nan), reason.metric or "1").said,
        "setting": reason.setting or "the other setting",
    }


def share(known: float) -> str:
    """A share of clients in per cent, which is no rounder than it is sure."""
    return f"{100 * known:.{0 if known >= 0.095 else 1}f} %"


_MOST = 3
"""Reasons of one verdict that are named; with half as many one attack of three goes unsaid, with
twice as many a sentence is not read to its end."""
_LENGTH = 160
"""Characters of an attack's reason in a sentence. Half as many cut the names of two vocabularies
that do not fit, twice as many a whole list of options."""
_BESIDE = frozenset(
    {"false_certificates", "skipped", "foreign_control", "power_unmeasured", "contradiction"}
)
"""Kinds of reasons that do not say why a verdict is not decided."""


def details(section: TaskFindings, verdict: Verdict, base: Verdict | None) -> Iterator[Said]:
    """The numbers behind a verdict, how much it was put to the test, and why it is open.

    Args:
        section: the task.
        verdict: on a defense.
        base: the verdict without a defense in the same setting.
    """
    for reason in verdict.reasons:
        if reason.kind == "false_certificates":
            yield say("detail.false", why=phrase(section, reason))
    refused = verdict.strongest.refused if verdict.strongest is not None else 0
    hardly = 2 * refused > verdict.victims and verdict.rows in ("not decided", "no leak found")
    if hardly:
        yield _refused(section, verdict, "detail.hardly")
    yield from _weak(section, verdict, base)
    if verdict.rows == "not attacked":
        yield _untested(section, verdict)
    else:
        yield from _leakage(section, verdict)
        yield from _doubt(section, verdict)
    if accuracy := label_accuracy(section, verdict):
        facts = {"attack": attack_label(section, verdict.labels)}
        yield say("detail.labels", share=f"{100 * accuracy.value:.0f} %", **facts)
    if best := verdict.members:
        facts = {"metric": METRICS[best.metric], "value": str(best.number)}
        yield say("detail.members", attack=best.attack, **facts)
    if refused and not hardly:
        yield _refused(section, verdict, "detail.refused")
    yield from _noted(section, verdict)
    if verdict.rows != "not attacked":
        for name, why in refusals(section, verdict.place).items():
            cause = f": {why}" if why else ""
            yield say("detail.refused_wholly", attack=capital(name), why=cause)


def recovered(section: TaskFindings, verdict: Verdict) -> tuple[int, int] | None:
    """How many victims the strongest attack recovers, of how many; None without a threshold."""
    strongest = verdict.strongest
    result = section.result(verdict.place, strongest.attacker) if strongest else None
    leakage = result.leakage.get(section.main) if result else None
    if leakage is None or leakage.share is None:
        return None
    return round(leakage.share.value * leakage.n), verdict.victims


def _leakage(section: TaskFindings, verdict: Verdict) -> Iterator[Said]:
    """What the strongest attack reaches, and what guessing blindly does."""
    if verdict.grade == "words":
        yield from _words(section, verdict)
        return
    name, highest = reached(section, verdict.strongest)
    if highest is None:
        return
    null = null_of(section, verdict, verdict.null) if verdict.null else None
    count = recovered(section, verdict)
    mean = Number(highest.value, highest.unit).said
    against = sentence("detail.against", blind=null.said) if null else ""
    facts = {"attack": capital(name), "metric": title(section.main), "against": against}
    if count is None:
        yield say("detail.reached", mean=mean, **facts)
    else:
        counts = {"count": count[0], "of": count[1], "them": things(section)}
        yield say("detail.recovered", mean=mean, **counts, **facts)


def _words(section: TaskFindings, verdict: Verdict) -> Iterator[Said]:
    """How many words of a batch an attack names, which can leak without their order."""
    results = [section.result(verdict.place, attacker) for attacker in verdict.beating]
    known = [result for result in results if result and set(WORDS) <= result.leakage.keys()]
    if known:
        best = max(known, key=lambda result: min(result.leakage[name].mean for name in WORDS))
        precision, recall = (f"{100 * best.leakage[name].mean:.0f} %" for name in WORDS)
        name = capital(attack_label(section, best.attacker))
        yield say("detail.words", attack=name, precision=precision, recall=recall)


def _doubt(section: TaskFindings, verdict: Verdict) -> Iterator[Said]:
    """Why it is open; or, where no leak was found, what that means."""
    if verdict.rows == "no leak found":
        unit = unit_of_main(section)
        most = "" if verdict.most is None else Number(max(verdict.most, 0.0), unit).said
        at_most = sentence("detail.most", most=most) if most else ""
        yield say("detail.bounded", most=at_most, share=share(verdict.recovered.high))
        if skipped := verdict.jobs["skipped"]:
            yield say("detail.skipped", jobs=counted(skipped, "job"))
    if verdict.rows != "not decided":
        return
    reasons = [reason for reason in verdict.reasons if reason.kind not in _BESIDE]
    lead = number(section, verdict.over_null)
    if lead and not any(reason.kind == "wide" for reason in reasons):
        yield say("detail.lead", lead=lead.said)
    open_ = list(dict.fromkeys(str(phrase(section, reason)) for reason in reasons))
    more = [sentence("detail.more", more=len(open_) - _MOST)] if len(open_) > _MOST else []
    yield say("detail.open", reasons="; ".join([*open_[:_MOST], *more]))


def _refused(section: TaskFindings, verdict: Verdict, reason: str) -> Said:
    """How many victims the strongest attack could not attack."""
    assert verdict.strongest is not None
    refused = verdict.strongest.refused
    name = capital(attack_label(section, verdict.strongest.attacker))
    counts = {"ran": verdict.victims - refused, "of": verdict.victims, "refused": refused}
    return say(reason, attack=name, **counts)


def _untested(section: TaskFindings, verdict: Verdict) -> Said:
    skipped = verdict.jobs["skipped"]
    if not skipped:
        return say("detail.unrun")
    known = [(name, why) for name, why in refusals(section, verdict.place).items() if why]
    cause = "".join(f": {name}: {why}" for name, why in known[:1])
    return say("detail.untested", jobs=counted(skipped, "job"), why=cause)


def _noted(section: TaskFindings, verdict: Verdict) -> Iterator[Said]:
    """What the strongest attack noted on most of its jobs, where no leak is shown."""
    strongest = verdict.strongest
    result = section.result(verdict.place, strongest.attacker) if strongest else None
    if result is None or verdict.rows not in ("not decided", "no leak found"):
        return
    note = _commonest(result, "done")
    if 2 * note.jobs >= sum(result.jobs.values()):
        name = capital(attack_label(section, result.attacker))
        facts = {"jobs": counted(note.jobs, "job"), "note": _shortened(note.reason)}
        yield say("detail.noted", attack=name, **facts)


def _weak(section: TaskFindings, verdict: Verdict, base: Verdict | None) -> Iterator[Said]:
    """Which attacks on a defense are not shown to work even where there is none."""
    open_ = verdict.rows in ("not decided", "no leak found")
    if not open_ or base is None or base is verdict or base.rows != "leaks":
        return
    ran, known = _attackers(section, verdict.place), _attackers(section, base.place)
    weak = [
        attack_label(section, attacker)
        for attacker in ran
        if attacker.attack != PRIOR_ONLY and attacker in known and attacker not in base.beating
    ]
    if weak:
        yield say("detail.weak", attacks=listed(weak))


def _attackers(section: TaskFindings, place: DefenseInSetting) -> dict[AttackKey, None]:
    """The attacks on clients that have a score at a place."""
    return dict.fromkeys(
        result.attacker
        for result in section.results
        if result.place == place and not result.is_control and result.leakage
    )


def refusals(section: TaskFindings, place: DefenseInSetting) -> dict[str, str]:
    """Attacks all of whose jobs were skipped at a place: label -> the commonest cause, short."""
    return {
        attack_label(section, result.attacker): _shortened(_commonest(result, "skipped").cause)
        for result in section.results
        if result.place == place and not result.is_control and was_refused(result)
    }


def was_refused(result: Result) -> bool:
    """Whether every job of an attack was skipped."""
    return 0 < result.jobs["skipped"] == sum(result.jobs.values())


def _commonest(result: Result, status: str) -> Problem:
    """What is said of most jobs of a status; of no jobs if there are none."""
    known = [problem for problem in result.problems if problem.status == status]
    nothing = Problem(status=status, reason="", jobs=0)
    return max(known, key=lambda problem: problem.jobs, default=nothing)


def _shortened(text: str) -> str:
    return shorten(text.rstrip("."), _LENGTH, placeholder=" ...")
