"""How much a defense was tested, and why a verdict leaves it open."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import shorten

from experiments.analysis.evidence import Verdict
from experiments.analysis.findings import Problem, Result, TaskFindings
from experiments.analysis.keys import DefenseInSetting
from experiments.report.naming import attack_label, unit_of_main
from experiments.report.numbers import number
from experiments.report.reasons import phrase, share_bound, unit_after
from experiments.wording.names import show
from experiments.wording.prose import capital, counted, listed
from fedsim.records import PRIOR_ONLY, AttackKey

_BESIDE = frozenset(
    {"false_certificates", "skipped", "foreign_control", "power_unmeasured", "contradiction"}
)
"""Kinds of reasons that do not say why a verdict is not decided."""
_LENGTH = 160
"""Characters of a reason in a sentence. Half as many cut the names of two vocabularies that do not
fit, twice as many a whole list of options."""
_MOST = 3
"""Reasons named in a sentence; with half of them one attack of three goes unsaid, with twice as
many a sentence is not read to its end."""


def tested(section: TaskFindings, verdict: Verdict, bare: Verdict | None) -> str:
    """How much a verdict that shows no leak was put to the test: refusals and failing attacks."""
    if verdict.rows not in ("not decided", "no leak found"):
        return ""
    return " ".join(filter(None, (hardly(section, verdict), _telling(section, verdict, bare))))


def hardly(section: TaskFindings, verdict: Verdict) -> str:
    """A warning if the strongest attack refused most victims; else empty."""
    strongest = verdict.strongest
    if strongest is None or not mostly_refused(verdict):
        return ""
    ran = verdict.victims - strongest.refused
    name = attack_label(section, strongest.attacker)
    return (
        f"Hardly tested: {name} could attack {ran} of {verdict.victims} victims; the other "
        f"{strongest.refused} count as blind guesses."
    )


def mostly_refused(verdict: Verdict) -> bool:
    """Whether the strongest attack refused more than half of the victims."""
    return verdict.strongest is not None and 2 * verdict.strongest.refused > verdict.victims


def refused(section: TaskFindings, verdict: Verdict) -> str:
    """How many victims the strongest attack could not attack, in a sentence; empty for none."""
    strongest = verdict.strongest
    if strongest is None or not strongest.refused:
        return ""
    if mostly_refused(verdict) and verdict.rows in ("not decided", "no leak found"):
        return ""  # said first, see ``hardly``
    name = attack_label(section, strongest.attacker)
    return (
        f"{capital(name)} could not attack {strongest.refused} of {verdict.victims} "
        "victims, which count as blind guesses."
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


def refused_wholly(section: TaskFindings, verdict: Verdict) -> str:
    """Attacks that refused every victim, a sentence each."""
    return " ".join(
        f"{capital(name)} refused every victim{f': {reason}' if reason else ''}."
        for name, reason in refusals(section, verdict.place).items()
    )


def noted(section: TaskFindings, verdict: Verdict) -> str:
    """What the strongest attack noted on most of its jobs, where no leak is shown; else empty."""
    strongest = verdict.strongest
    result = section.result(verdict.place, strongest.attacker) if strongest else None
    if result is None or verdict.rows not in ("not decided", "no leak found"):
        return ""
    note = _commonest(result, "done")
    if 2 * note.jobs < sum(result.jobs.values()):
        return ""
    name = attack_label(section, result.attacker)
    return f"{capital(name)} notes on {counted(note.jobs, 'job')}: {_shortened(note.reason)}."


def _telling(section: TaskFindings, verdict: Verdict, bare: Verdict | None) -> str:
    """Which attacks on this defense are not shown to work even where there is none."""
    if bare is None or bare.rows != "leaks":
        return ""
    ran = dict.fromkeys(
        result.attacker
        for result in section.results
        if result.place == verdict.place
        and result.control == result.probe == "none"
        and result.leakage
    )
    known = {
        result.attacker
        for result in section.results
        if result.place == bare.place and result.leakage
    }
    weak = [
        attacker
        for attacker in ran
        if attacker.attack != PRIOR_ONLY and attacker in known and attacker not in bare.beating
    ]
    if not weak:
        return ""
    are = "is" if len(weak) == 1 else "are"
    return f"{_names(section, weak)} {are} not shown to beat a blind guess even without a defense."


def _names(section: TaskFindings, attackers: Sequence[AttackKey]) -> str:
    names = [attack_label(section, attacker) for attacker in attackers]
    return capital(listed(names))


def doubt(section: TaskFindings, verdict: Verdict) -> str:
    """Why it is open; or, where no leak was found, what that means."""
    if verdict.rows == "no leak found":
        skipped = verdict.jobs["skipped"]
        refusing = f"{counted(skipped, 'job')} could not attack." if skipped else ""
        most = (
            ""
            if verdict.most is None
            else f"at most {show(max(verdict.most, 0.0), unit_of_main(section))}"
        )
        return (
            f"At 95 % the mean is {most}{unit_after(section)} above a blind guess, and at most "
            f"{share_bound(verdict.recovered)} of clients have an example that these attacks "
            f"recover; a stronger attack may still succeed. {refusing}"
        )
    if verdict.rows != "not decided":
        return ""
    reasons = [reason for reason in verdict.reasons if reason.kind not in _BESIDE]
    over = number(section, verdict.over_null)
    said = any(reason.kind == "wide" for reason in reasons)
    lead = (
        f"Its lead over a blind guess is {over}{unit_after(section)}. " if over and not said else ""
    )
    open_ = [phrase(section, reason) for reason in reasons]
    more = len(open_) - _MOST
    listed = "; ".join(open_[:_MOST]) + (f"; and {more} more" if more > 0 else "")
    return f"{lead}Left open: {listed}."


def false_certificates(section: TaskFindings, verdict: Verdict) -> str:
    """The loudest warning of the page; empty where every certificate is true."""
    false = [
        phrase(section, reason) for reason in verdict.reasons if reason.kind == "false_certificates"
    ]
    return " ".join(f"{sentence}." for sentence in false)
