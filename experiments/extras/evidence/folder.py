"""The folder of evidence: what a privacy assessment asks of a run, a page, their hashes."""

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

from fedsim import attested
from fedsim.api import Findings, Run, WorstPerson
from fedsim.api.calls import render
from fedsim.errors import StoreError
from fedsim.store.files import SCHEMA, Sealed, read_record, write_bytes, write_json
from fedsim.store.plain_files import check_path, digest_plain
from fedsim.visible import redacted

_SOURCES = (
    *("experiment.toml", "summary.json", "findings.json"),
    *("scores.parquet", "utility.parquet", "coverage.parquet"),
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
    yield "seeds", _joined(known.get("seeds", ()))
    yield "machine", f"{known.get('machine', 'unknown')}, {known.get('cpus', '?')} CPUs"
    for name, value in known.get("packages", {}).items():
        yield name, str(value)
    for key in ("commands", "commits", "devices"):
        for stage, value in known.get(key, {}).items():
            shown = _joined(value) if isinstance(value, list) else str(value)
            yield f"{key[:-1]} of {stage}", redacted(shown)


def _joined(values: Sequence[object]) -> str:
    return ", ".join(map(str, values))


RECORD, PAGE, MANIFEST = "evidence.json", "index.html", "manifest.json"


class EvidenceManifest(Sealed):
    """``manifest.json``: SHA-256 of the files of the folder and of those of the run.

    Whoever signs the folder signs this file; its own hash is what ``fedsim evidence`` prints.
    """

    schema_version: int = SCHEMA
    files: dict[str, str]
    sources: dict[str, str]


def write_evidence(record: EvidenceRecord, folder: Path) -> str:
    """Write the folder anew; returns the hash of its manifest.

    Raises:
        StoreError: it holds files of others.
    """
    check_path(folder)
    if folder.exists():
        known = (RECORD, PAGE, MANIFEST)
        ours = {*known, *(path.name for k in known for path in folder.glob(f".{k}.*.tmp"))}
        if other := sorted({path.name for path in folder.iterdir()} - ours):  # killed writers' too
            raise StoreError(f"{folder / other[0]}: is no evidence. Name another folder.")
        shutil.rmtree(folder)
    write_json(folder / RECORD, record)
    write_bytes(folder / PAGE, _render(record).encode())
    hashes = {name: digest_plain(folder / name) for name in (RECORD, PAGE)}
    write_json(folder / MANIFEST, EvidenceManifest(files=hashes, sources=record.sources))
    return digest_plain(folder / MANIFEST)


def verify(folder: Path, run: Path | None = None) -> str:
    """Check a folder against its manifest, and the run that it is about if it is there.

    Args:
        folder: of the evidence.
        run: the run; None for the folder above, if that is one.

    Returns:
        What was checked, and the hash of the manifest.

    Raises:
        StoreError: a file is missing, altered or not listed.
    """
    manifest = read_record(folder / MANIFEST, EvidenceManifest)
    present = {path.name for path in folder.iterdir()} - {MANIFEST}
    if added := sorted(present - manifest.files.keys()):
        raise StoreError(f"{folder / added[0]}: the manifest does not list it. Remove it.")
    _check(folder, manifest.files)
    record = read_record(folder / RECORD, EvidenceRecord)
    if record.sources != manifest.sources:
        raise StoreError(f"{folder / RECORD}: names other sources than the manifest. Restore it.")
    said = f"{len(manifest.files)} files as listed"
    beside = folder.parent if (folder.parent / "experiment.toml").exists() else None
    if (root := run or beside) is not None:
        _check(root, manifest.sources)
        said += f"; the run's {len(manifest.sources)} files as listed"
    else:
        said += "; the run is not here, and was not checked"
    return f"{folder}: {said}; manifest {digest_plain(folder / MANIFEST)}"


def _check(folder: Path, known: dict[str, str]) -> None:
    for name, sha256 in known.items():
        path = folder / name
        if not path.is_file():
            raise StoreError(f"{path}: the file is missing. Restore it.")
        if digest_plain(path) != sha256:
            raise StoreError(f"{path}: the file was altered since. Restore it, or make it anew.")


def _render(record: EvidenceRecord) -> str:
    return render(
        "experiments.extras.evidence",
        "evidence.html.j2",
        record=record,
        persons=_persons(record),
        dump=json.dumps,
    )


def _persons(record: EvidenceRecord) -> list[tuple[str, tuple[WorstPerson, ...]]]:
    """Exact and recognisable returns, most clients first; defenses with equal counts together."""
    places: dict[tuple[str, str], list[WorstPerson]] = {}
    for person in record.persons:
        places.setdefault((person.setting, person.defense), []).append(person)
    groups: dict[tuple[tuple[str, int, int], ...], list[tuple[WorstPerson, ...]]] = {}
    for persons in places.values():
        counts = tuple((person.kind, person.hit, person.of) for person in persons)
        groups.setdefault(counts, []).append(tuple(persons))
    ordered = sorted(groups.values(), key=lambda group: [-person.high for person in group[0]])
    return [(_listed([persons[0].defense for persons in group]), group[0]) for group in ordered]


def _listed(defenses: list[str]) -> str:
    """``no defense``, or how many share the numbers; settings are told apart in the table."""
    known = list(dict.fromkeys(defenses))
    return known[0] if len(known) == 1 else f"{known[0]} and {len(known) - 1} more, each"
