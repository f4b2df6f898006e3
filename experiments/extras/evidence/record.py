"""``evidence.json``: what a privacy assessment asks of a run; no private rows and no guesses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from typing import Any

from fedsim import attested
from fedsim.api import Findings, Run
from fedsim.redaction import redacted
from fedsim.store.plain_files import digest_plain

_SOURCES = (
    *("experiment.toml", "summary.json", "findings.json"),
    *("scores.parquet", "utility.parquet", "coverage.parquet", "updates.parquet"),
    *("membership.parquet", "limits.json", "audit.json"),
)


class EvidenceRecord(Findings):
    """What the report concluded, and where it comes from.

    Attributes:
        made: date of the folder, UTC.
        review: date by which it is to be looked at again.
        provenance: what and value.
        command: what repeats the run.
        sources: SHA-256 of the files of the run that this rests on, by name.
        sites: site by round, what each reply shows of a defense, its claim, and its guard's word.
    """

    name: str
    made: str
    review: str
    command: str
    provenance: tuple[tuple[str, str], ...]
    sources: dict[str, str]
    sites: tuple[dict[str, str], ...]


def compiled(run: Run, today: date, review: date) -> EvidenceRecord:
    """The evidence about a run.

    Raises:
        StoreError: the run is not reported.
    """
    findings, known = run.findings, run.provenance
    sites = tuple(
        {"defense": each.place, "round": str(each.key.round), "site": str(each.key.client)}
        | {name: getattr(each, name) for name in ("attested", "claimed", "guarded")}
        for each in attested(run.root)
    )
    return EvidenceRecord(
        **{name: getattr(findings, name) for name in Findings.model_fields if name != "seal"},
        name=str(run.experiment["name"]),
        made=today.isoformat(),
        review=review.isoformat(),
        command=str(next(iter(known.get("commands", {}).values()), "unknown")),
        provenance=tuple(_provenance(known)),
        sites=sites,
        sources={name: digest_plain(run.root / name) for name in _files(run)},
    ).sealed()


def _files(run: Run) -> Iterator[str]:
    for name in _SOURCES:
        if (run.root / name).exists():
            yield name
    for cell in run.cells:
        for name in ("cell.json", "simulation.json"):
            if (cell.folder / name).exists():
                yield f"{cell.name}/{name}"


def _provenance(known: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield "fedsim", str(known.get("fedsim", "unknown"))
    yield "started", str(known.get("started", "unknown"))
    yield "seeds", _listed(known.get("seeds", ()))
    yield "machine", f"{known.get('machine', 'unknown')}, {known.get('cpus', '?')} CPUs"
    for name, value in known.get("packages", {}).items():
        yield name, str(value)
    for key in ("commands", "commits", "devices"):
        for stage, value in known.get(key, {}).items():
            shown = _listed(value) if isinstance(value, list) else str(value)
            yield f"{key[:-1]} of {stage}", redacted(shown)


def _listed(values: Sequence[object]) -> str:
    return ", ".join(map(str, values))
