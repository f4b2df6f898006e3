"""Reasons of a verdict in words; the only place where a record becomes a sentence."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from experiments.analysis.evidence import Clients, Kind, Reason, Verdict
from experiments.analysis.findings import TaskFindings
from experiments.analysis.membership import METRICS
from experiments.report.naming import attack_label, unit_of_main
from experiments.wording.names import show, title
from experiments.wording.prose import counted
from fedsim.records import MAIN, OTHER_CLIENT, PRIOR_ONLY

BASELINES = {PRIOR_ONLY: "prior only", OTHER_CLIENT: "another client's update"}


def phrases(section: TaskFindings, verdict: Verdict) -> tuple[str, ...]:
    """Every reason, for a table."""
    return tuple(phrase(section, reason) for reason in verdict.reasons)


def phrase(section: TaskFindings, reason: Reason) -> str:
    """One reason, as a clause without its full stop."""
    return _PHRASES[reason.kind](section, reason)


def unit_after(section: TaskFindings) -> str:
    """The unit of the main metric as it follows a number; empty for a share."""
    unit = unit_of_main(section)
    return "" if unit == "1" else f" {unit}"


def _jobs(reason: Reason) -> str:
    return counted(reason.numbers["jobs"], "job")


def _clients(reason: Reason) -> str:
    return counted(reason.numbers["clients"], "client")


def clients_hit(known: Clients, how: str) -> str:
    """``3 of 500 clients verbatim, at least 0.2 % at 95 %``."""
    return f"{known.hit} of {known.of} clients {how}, at least {_percent(known.low)} at 95 %"


def share_bound(known: Clients) -> str:
    """The largest share of clients that these numbers leave open."""
    return _percent(known.high)


def _percent(share: float) -> str:
    return f"{100 * share:.{0 if share >= 0.095 else 1}f} %"


def _who(section: TaskFindings, reason: Reason) -> str:
    return attack_label(section, reason.attack) if reason.attack else "the best attack"


def _false(section: TaskFindings, reason: Reason) -> str:
    numbers = reason.numbers
    return (
        f"FALSE CERTIFICATES: {numbers['false']:.0f} of the {numbers['certified']:.0f} guesses "
        f"that {_who(section, reason)} certified as exact are not"
    )


def _unrun(_: TaskFindings, reason: Reason) -> str:
    parts = [f"{count:.0f} {status}" for status, count in reason.numbers.items()]
    return ", ".join(parts) or "no attack was run"


def _no_null(_: TaskFindings, reason: Reason) -> str:
    if reason.baseline == OTHER_CLIENT:
        return "there is no update of another client to compare with"
    return "there is no blind guess to compare with: add the attack prior_only"


def _few(_: TaskFindings, reason: Reason) -> str:
    numbers = reason.numbers
    return f"{_clients(reason)}, where a mean takes {numbers['needed']:.0f} to decide"


def _alike(section: TaskFindings, reason: Reason) -> str:
    return (
        f"{_metric(reason)}{_who(section, reason)} and {BASELINES[reason.baseline]} are alike on "
        f"most of {_clients(reason)}, which says little about others"
    )


def _wide(section: TaskFindings, reason: Reason) -> str:
    numbers = reason.numbers
    unit = "1" if reason.metric not in MAIN.values() else unit_of_main(section)
    mean, low, high = (show(numbers[name], unit) for name in ("mean", "low", "high"))
    after = "" if unit == "1" else f" {unit}"
    needed = numbers["needed"]
    more = (
        "no number of clients is likely to decide"
        if math.isinf(needed)
        else f"about {needed:.0f} clients would decide"
    )
    return (
        f"{_metric(reason)}the lead of {_who(section, reason)} over {BASELINES[reason.baseline]} "
        f"is {mean} [{low}, {high}]{after}, and {more}"
    )


def _beats_one(section: TaskFindings, reason: Reason) -> str:
    if not reason.baseline:
        return f"{title(reason.metric)} alone is surely above blind guesses"
    other = next(name for kind, name in BASELINES.items() if kind != reason.baseline)
    return (
        f"{_metric(reason)}{_who(section, reason)} is above {other}, not above "
        f"{BASELINES[reason.baseline]}: it reads something that a better attack might use"
    )


def _recovered(section: TaskFindings, reason: Reason) -> str:
    return (
        f"{_who(section, reason)} recovers an example of {_clients(reason)} "
        "where blind guesses do not, too few to exclude chance"
    )


def _exact(section: TaskFindings, reason: Reason) -> str:
    return (
        f"{_who(section, reason)} returns an example of {_clients(reason)} exactly where no blind "
        "guess does, but blind guesses come near to others: too few to exclude chance"
    )


def _beyond(_: TaskFindings, reason: Reason) -> str:
    return (
        f"{_clients(reason)} have an example whose lead over the blind guess is above all that "
        "attacks on other clients' updates get: too few to exclude chance"
    )


def _class_only(section: TaskFindings, reason: Reason) -> str:
    lead = f"{show(reason.numbers['mean'], unit_of_main(section))}{unit_after(section)}"
    return f"the lead of {lead} over blind guesses is no more than knowing the label may bring"


def _search_errors(section: TaskFindings, reason: Reason) -> str:
    numbers = reason.numbers
    by = f"{show(numbers['excess'], reason.metric or '1')} {reason.metric}".strip()
    return (
        f"the search of {_who(section, reason)} ended too early: of {numbers['errors']:.0f} of "
        f"{numbers['updates']:.0f} updates the private examples have the better objective, by {by} "
        "in the median"
    )


def _alone(where: str) -> Callable[[TaskFindings, Reason], str]:
    def said(section: TaskFindings, reason: Reason) -> str:
        lead = f"{show(reason.numbers['mean'], unit_of_main(section))}{unit_after(section)}"
        part = where.format(part=reason.numbers["part"])
        return f"{part} alone {_who(section, reason)} is {lead} above blind guesses, surely"

    return said


def _answered(section: TaskFindings, reason: Reason) -> str:
    numbers = reason.numbers
    lead = f" is {show(numbers['mean'], unit_of_main(section))}{unit_after(section)} above a blind"
    said = f"{lead} guess" if "mean" in numbers else " is compared with no blind guess"
    return (
        f"{_metric(reason)}on the {numbers['victims']:.0f} of {numbers['of']:.0f} victims that it "
        f"did not refuse {_who(section, reason)}{said}, which is not surely too little to count"
    )


def _members(_: TaskFindings, reason: Reason) -> str:
    numbers = reason.numbers
    lost = f", {numbers['lost']:.0f} of jobs that did not end" if numbers["lost"] else ""
    return (
        f"members may be told: {METRICS[reason.metric]} {show(numbers['mean'], '1')} of "
        f"{counted(numbers['members'], 'member')}{lost}, too few to exclude chance"
    )


def _foreign(section: TaskFindings, reason: Reason) -> str:
    where = reason.setting or "the other setting"
    return (
        f"{_who(section, reason)} was run without a defense at {where} alone, where it works, and "
        "not in this setting"
    )


def _below_blind(section: TaskFindings, reason: Reason) -> str:
    unit = unit_of_main(section)
    after = "" if unit == "1" else f" {unit}"
    return (
        f"the attacks return {show(-reason.numbers['mean'], unit)}{after} less than a blind guess, "
        "so that their failure says nothing of a better one"
    )


def _metric(reason: Reason) -> str:
    return "" if reason.metric in MAIN.values() else f"{title(reason.metric)}: "


_PHRASES: Mapping[Kind, Callable[[TaskFindings, Reason], str]] = {
    "false_certificates": _false,
    "no_metric": lambda *_: "the metric of the verdicts was not measured",
    "unrun": _unrun,
    "no_null": _no_null,
    "few_clients": _few,
    "alike": _alike,
    "wide": _wide,
    "beats_one": _beats_one,
    "recovered": _recovered,
    "exact": _exact,
    "beyond": _beyond,
    "class_only": _class_only,
    "round": _alone("in round {part:.0f}"),
    "seed": _alone("under seed {part:.0f}"),
    "answered": _answered,
    "members": _members,
    "contradiction": lambda *_: (
        "CONTRADICTION: a bound says that no attack can gain so much, so "
        "that one of its assumptions is wrong, or the computation is"
    ),
    "failed": lambda _, reason: f"{_jobs(reason)} failed",
    "unfinished": lambda _, reason: f"{_jobs(reason)} unfinished: the clock ended them",
    "exhausted": lambda _, reason: f"{_jobs(reason)} exhausted: a budget of the attack ended them",
    "interrupted": lambda _, reason: (
        f"{_jobs(reason)} were interrupted: fedsim attack runs them again"
    ),
    "no_adaptive": lambda *_: "no attack was adapted to the defense",
    "no_control": lambda *_: "no attack that was run is shown to work here without a defense",
    "below_blind": _below_blind,
    "search_errors": _search_errors,
    "power_unmeasured": lambda *_: (
        "how far these attacks searched is not measured: none of them has an objective, or it was "
        "not compared at the private examples"
    ),
    "foreign_control": _foreign,
    "hardly_tested": lambda *_: "every attack refused most victims",
    "skipped": lambda _, reason: f"{_jobs(reason)} were skipped",
}
