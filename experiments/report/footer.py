"""The end of a page: definitions, provenance and cost of the run."""

import re
from collections.abc import Collection, Mapping
from typing import Any

from experiments.analysis.statistics import FEW
from experiments.plan.folder import STAGES
from experiments.preview.manuals import first_sentence
from experiments.stages.coverage import THRESHOLDS
from experiments.wording.catalogue import terms
from experiments.wording.names import duration, option, title
from fedsim.metrics.base import Metric
from fedsim.visible import redacted


def footer(provenance: Mapping[str, Any]) -> dict[str, Any]:
    """What a page says of its run beside the answer, for the layout of all pages."""
    return {
        "cover": _cover(provenance),
        "cost": cost(provenance),
        "provenance": [(key, redacted(value)) for key, value in provenance_lines(provenance)],
    }


def provenance_lines(provenance: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Where the run comes from; what stages share stands in one line."""
    lines = []
    for key, value in provenance.items():
        if not isinstance(value, Mapping):
            lines.append((key, option(value)))
        elif key in ("packages", "jobs"):
            lines.append((key, ", ".join(f"{k} {option(v)}" for k, v in value.items())))
        elif key != "seconds":  # the wall time says them
            lines.append((key, "; ".join(dict.fromkeys(map(option, value.values())))))
    return lines


def cost(provenance: Mapping[str, Any]) -> str:
    """The wall time of each stage but the one that writes this page; empty where none is noted."""
    seconds = provenance.get("seconds", {})
    parts = [f"{stage} {duration(seconds[stage])}" for stage in STAGES[:-1] if stage in seconds]
    cpus = provenance.get("cpus")
    return ", ".join(parts) + (f", on {cpus} CPUs" if parts and cpus else "")


def _cover(provenance: Mapping[str, Any]) -> dict[str, str]:
    """What a printed page says first of its run: date, version and the commits of its stages."""
    commits = dict.fromkeys(map(option, provenance.get("commits", {}).values()))
    lines = {
        "Run started": option(provenance.get("started", "not noted")),
        "fedsim": option(provenance.get("fedsim", "not noted")),
        "Commit": ", ".join(commits) or "not noted",
    }
    return {key: redacted(value) for key, value in lines.items()}


def glossary(page: str) -> list[tuple[str, str]]:
    """Terms that the text of a page holds, and what they mean."""
    return [
        (term, meaning.format(few=FEW, **THRESHOLDS))
        for term, (pattern, meaning) in terms().items()
        if re.search(rf"(?<!\w)(?:{pattern})", page, re.IGNORECASE)
    ]


def metric_terms(
    classes: Mapping[str, type[Metric]], shown: Collection[str]
) -> list[tuple[str, str]]:
    """The metrics that are shown, each with a sentence on it."""
    return [
        (title(name), first_sentence(kind).replace("``", ""))
        for name, kind in classes.items()
        if name in shown
    ]
