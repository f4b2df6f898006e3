"""How much a defense was tested, and why a verdict leaves it open."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import takewhile

from experiments.analysis.comparison import FEW
from experiments.analysis.evidence import Verdict
from experiments.analysis.findings import MARGINS, TaskFindings
from experiments.analysis.statistics import wilson
from experiments.report.naming import attack_label, unit_of_main
from experiments.report.verdict_tables import number
from experiments.wording.names import show
from fedsim.records import PRIOR_ONLY, AttackKey

_BESIDE = re.compile(r"one client:|\d+ clients:|no adaptive attack|\d+ jobs were|labels leak")
"""Begins the notes that do not say why a verdict is inconclusive; they come after those that do."""


def tested(section: TaskFindings, verdict: Verdict, bare: Verdict | None) -> str:
    """How much a verdict that shows no leak was put to the test: refusals and failing attacks."""
    if verdict.word not in ("inconclusive", "no leak found"):
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
    if mostly_refused(verdict) and verdict.word in ("inconclusive", "no leak found"):
        return ""  # said first, see ``hardly``
    name = attack_label(section, strongest.attacker)
    return (
        f"{name[:1].upper()}{name[1:]} could not attack {strongest.refused} of {verdict.victims} "
        "victims, which count as blind guesses."
    )


def _telling(section: TaskFindings, verdict: Verdict, bare: Verdict | None) -> str:
    """Which attacks on this defense are not shown to work even where there is none."""
    if bare is None or bare.word != "leaks":
        return ""
    ran = dict.fromkeys(
        one.attacker
        for one in section.results
        if one.place == verdict.place and one.control == one.probe == "none" and one.leakage
    )
    known = {one.attacker for one in section.results if one.place == bare.place and one.leakage}
    weak = [
        one for one in ran if one.attack != PRIOR_ONLY and one in known and one not in bare.beating
    ]
    if not weak:
        return ""
    are = "is" if len(weak) == 1 else "are"
    return f"{_names(section, weak)} {are} not shown to beat a blind guess even without a defense."


def _names(section: TaskFindings, attackers: Sequence[AttackKey]) -> str:
    names = [attack_label(section, one) for one in attackers]
    text = " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))
    return text[:1].upper() + text[1:]


def _reason(note: str, attacks: int) -> str:
    """``SPEAR: too few clients`` as ``SPEAR (too few clients)``; of all attacks if none is named.

    A reason of its own, such as ``jobs failed``, stays as it is.
    """
    whose, apart, why = note.partition(": ")
    if apart:
        return f"{whose} ({why})"
    if re.match("beats|does not beat", note):
        return f"{'the attack' if attacks == 1 else 'every attack'} ({note})"
    return note


def doubt(section: TaskFindings, verdict: Verdict) -> str:
    """Why it is open; or, where no leak was found, what that means."""
    unit = unit_after(section)
    if verdict.word == "no leak found":
        margin = show(MARGINS[section.modality], unit_of_main(section))
        skipped = verdict.jobs["skipped"]
        return (
            f"No attack's interval reaches {margin}{unit} above a blind guess, but a stronger "
            "attack may still succeed, and a leak in up to "
            f"{100 * wilson(0, verdict.clients)[1]:.0f} % of clients is not ruled out. "
            f"{f'{jobs(skipped)} could not attack.' if skipped else ''}"
        )
    if verdict.word != "inconclusive":
        return ""
    broken, lost = verdict.jobs["failed"] + verdict.jobs["timeout"], verdict.jobs["interrupted"]
    over = number(section, verdict.over_null)
    if over is None:
        return "There is no blind guess to compare it with."
    if verdict.clients < FEW:
        one = verdict.clients == 1
        return f"{'One client is' if one else f'{verdict.clients} clients are'} too few to tell."
    if lost:
        return f"{jobs(lost)} were interrupted and are left out; fedsim attack runs them again."
    if broken:
        return f"{jobs(broken)} failed or ran out of time."
    none = over.low is not None and over.high is not None and over.low <= 0 <= over.high
    lead = (
        f"Its lead over a blind guess is {over}{unit}{': the interval includes 0' if none else ''}."
    )
    reasons = list(takewhile(lambda note: not _BESIDE.match(note), verdict.notes))
    open_ = " and ".join(_reason(note, verdict.attacks) for note in reasons)
    return f"{lead} {f'Left open by {open_}.' if open_ else ''}"


def unit_after(section: TaskFindings) -> str:
    """The unit of the main metric as it follows a number; empty for a share."""
    unit = unit_of_main(section)
    return "" if unit == "1" else f" {unit}"


def jobs(count: int) -> str:
    """``1 job``, ``2 jobs``."""
    return f"{count} job{'' if count == 1 else 's'}"
