"""The folder of evidence: a record, a page, and a manifest of their hashes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from experiments.extras.evidence.record import EvidenceRecord
from fedsim.api import WorstPerson
from fedsim.api.calls import render
from fedsim.errors import StoreError
from fedsim.store.files import SCHEMA, Sealed, read_record, write_bytes, write_json
from fedsim.store.plain_files import check_path, digest_plain

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
