"""The facts of a verdict's reasons; their sentences stand in the catalogue by kind."""

from __future__ import annotations

import math
from collections.abc import Mapping

from experiments.analysis.evidence import Reason, Verdict
from experiments.analysis.findings import TaskFindings
from experiments.analysis.membership import METRICS
from experiments.report.naming import attack_label, unit_of_main
from experiments.report.tables import Number
from experiments.wording.catalogue import Said
from experiments.wording.names import title
from experiments.wording.prose import counted
from fedsim.records import MAIN, OTHER_CLIENT, PRIOR_ONLY

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
