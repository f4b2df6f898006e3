"""The end of the page: definitions, provenance and cost of the run."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from experiments.plan.folder import STAGES
from experiments.wording.names import duration, flatten, option
from fedsim.errors import StoreError
from fedsim.metrics.base import Metric


def definition(metric: type[Metric]) -> str:
    """The docstrings of the metric and of the classes that it has its formula from."""
    texts = []
    for kind in metric.__mro__:
        texts.append(inspect.cleandoc(kind.__doc__ or "").replace("``", ""))
        if "score" in vars(kind):
            break
    return " ".join(texts)


def provenance_lines(provenance: Mapping[str, Any], *, full: bool) -> list[tuple[str, str]]:
    """Where the run comes from, by dotted key; unless in full, what stages share in one line."""
    if full:
        return [(key, option(value)) for key, value in flatten(provenance).items()]
    lines = []
    for key, value in provenance.items():
        if not isinstance(value, Mapping):
            lines.append((key, option(value)))
        elif key == "packages":
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


def read_json(path: Path) -> dict[str, Any]:
    """Read a table.

    Raises:
        StoreError: the file is missing or not JSON.
    """
    try:
        table: dict[str, Any] = json.loads(read_text(path))
    except json.JSONDecodeError as error:
        raise StoreError(f"{path}: not valid JSON ({error}). Restore the file.") from None
    return table


def read_text(path: Path) -> str:
    """Read a text.

    Raises:
        StoreError: the file is missing.
    """
    if not path.exists():
        raise StoreError(f"{path}: the file is missing. Restore it, or simulate again.")
    return path.read_text("utf-8")
