"""The end of the page: definitions, provenance and cost of the run."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from experiments.plan.folder import STAGES
from experiments.wording.names import duration, flatten, option
from fedsim.metrics.base import Metric


def definition(metric: type[Metric]) -> str:
    """The docstrings of the metric and of the classes that it has its formula from."""
    texts = []
    for kind in metric.__mro__:
        texts.append(_said(kind))
        if "score" in vars(kind):
            break
    return " ".join(texts)


def summary(metric: type[Metric]) -> str:
    """The first paragraph of the metric's docstring, which is one sentence."""
    return " ".join(_said(metric).partition("\n\n")[0].split())


def _said(kind: type) -> str:
    return inspect.cleandoc(kind.__doc__ or "").replace("``", "")


def provenance_lines(provenance: Mapping[str, Any], *, full: bool) -> list[tuple[str, str]]:
    """Where the run comes from, by dotted key; unless in full, what stages share in one line."""
    if full:
        return [(key, option(value)) for key, value in flatten(provenance).items()]
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


def cover(provenance: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What a printed page says first of its run: date, version and the commits of its stages."""
    commits = dict.fromkeys(map(option, provenance.get("commits", {}).values()))
    lines = {
        "Run started": option(provenance.get("started", "not noted")),
        "fedsim": option(provenance.get("fedsim", "not noted")),
        "Commit": ", ".join(commits) or "not noted",
    }
    return list(lines.items())
