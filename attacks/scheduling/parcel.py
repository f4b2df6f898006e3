"""The files of a job as they travel by Ray's object store to a worker without the run folder.

A worker unpacks them into a folder of its own, works there as in the run folder, and sends back
what it wrote, which the pool writes into the run folder.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

from attacks.scheduling.jobs import JobSpec
from attacks.scheduling.prepared import prepared_path
from fedsim.capture import CaptureStore
from fedsim.files import write_bytes

Reference: TypeAlias = Any
"""Ray's reference to the content of a file; Ray has no types."""

_CACHED = 2 << 30
"""Bytes of files shared by jobs, such as broadcasts, that stay in the object store."""


class Unseen(Exception):
    """The worker does not see the run folder, and got no files either."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """What a worker wrote, by name relative to the cell; the record of a guess comes after it."""

    files: Mapping[str, bytes]

    def write(self, spec: JobSpec) -> None:
        """Write the files into the cell of the job."""
        for name, content in self.files.items():
            write_bytes(spec.guesses.parent / name, content)


class Outbox:
    """Puts the files of jobs into Ray's object store; those that jobs share only once."""

    def __init__(self, ray: Any) -> None:  # noqa: ANN401
        self._ray = ray
        self._shared: dict[Path, Reference] = {}
        self._bytes = 0

    def pack(self, spec: JobSpec) -> dict[str, Reference]:
        """A reference to each file that the job reads, by name relative to the cell.

        Raises:
            StoreError: the record of a capture is missing or broken.
        """
        store = CaptureStore(spec.captures)
        unshared, shared = [], _common(spec.captures)
        for key in {*spec.keys, *spec.donors}:
            tensors = store.tensors_path(key)
            unshared += [tensors, tensors.with_suffix(".json")]
            shared.append(store.sent_path(store.record(key).sent_sha256))
        references = {_name(spec, path): self._put(path) for path in unshared if path.is_file()}
        references |= {_name(spec, path): self._share(path) for path in shared if path.is_file()}
        learned = prepared_path(spec, store.record(spec.keys[0]))
        for path in (learned, learned.with_suffix(".json")):
            if path.is_file():
                references[f"prepared/{path.name}"] = self._share(path)
        return references

    def _put(self, path: Path) -> Reference:
        return self._ray.put(path.read_bytes())

    def _share(self, path: Path) -> Reference:
        if path not in self._shared:
            if self._bytes > _CACHED:
                self._shared, self._bytes = {}, 0
            self._shared[path] = self._put(path)
            self._bytes += path.stat().st_size
        return self._shared[path]


def _common(captures: Path) -> list[Path]:
    """The files that belong to no round: the task, its tokenizer and the auxiliary rows."""
    apart = [path for path in captures.iterdir() if not path.name.startswith("round-")]
    return [
        path
        for place in apart
        if place.name != "models"
        for path in (place.rglob("*") if place.is_dir() else [place])
        if path.is_file()
    ]


def _name(spec: JobSpec, path: Path) -> str:
    return f"captures/{path.relative_to(spec.captures).as_posix()}"


def unpack(spec: JobSpec, files: Mapping[str, bytes], place: Path) -> JobSpec:
    """Write the files below ``place``, and return the job as it is there."""
    cell = place / spec.cell
    for name, content in files.items():
        write_bytes(cell / name, content, sync=False)
    return replace(spec, captures=cell / "captures", guesses=cell / "guesses")


def deliver(local: JobSpec, got: Mapping[str, bytes]) -> Delivery:
    """What the job has written in its own folder, but for what came with it."""
    cell = local.guesses.parent
    written = {
        path.relative_to(cell).as_posix(): path
        for folder in (local.guesses, cell / "prepared")
        for path in folder.rglob("*")
        if path.suffix in (".safetensors", ".json")
    }
    names = sorted(written.keys() - got.keys(), key=lambda name: (name.endswith(".json"), name))
    return Delivery({name: written[name].read_bytes() for name in names})
