"""Atomic files, identified by their hash: a file is either complete or absent."""

from __future__ import annotations

import hashlib
import json
import math
import os
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from io import BufferedWriter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

import fedsim
from fedsim.errors import StoreError
from fedsim.store.plain_files import digest_plain, read_plain

if TYPE_CHECKING:
    from torch import Tensor


Buffer: TypeAlias = bytes | memoryview


SCHEMA = 1
"""Version of the run folder; a folder of another version is refused."""


_TEMPORARY = ".tmp"


_OTHER_FIELDS = {"missing", "extra_forbidden"}
"""Faults of a record that is whole and has other fields than this version's."""


class Record(BaseModel):
    """Frozen record that is stored on disk as JSON; infinities and NaN are preserved."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="constants")


class Data(Record):
    """A record that writes infinities as strings, so that its file is strict JSON."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")


class Sealed(Record):
    """A record that is written with the hash of its other fields, against damage and edited digits.

    The seal is no signature: who alters a record on purpose can seal it again.
    """

    seal: str | None = None
    """None in older runs."""

    def sealed(self) -> Self:
        """The record as it is written."""
        return self.model_copy(update={"seal": self._hash()})

    @model_validator(mode="after")
    def _unaltered(self) -> Self:
        # A file of an earlier version was sealed without the fields that came since.
        if self.seal not in (None, self._hash(exclude_unset=True)):
            raise ValueError("differs from its seal")
        return self

    def _hash(self, *, exclude_unset: bool = False) -> str:
        whole = self.model_dump_json(exclude={"seal"}, exclude_unset=exclude_unset)
        return digest(whole.encode())


def digest(*parts: Buffer) -> str:
    """SHA-256 of the concatenated parts, in hexadecimal."""
    sha = hashlib.sha256()
    for part in parts:
        sha.update(part)
    return sha.hexdigest()


def write_bytes(path: Path, *parts: Buffer, sync: bool = True, private: bool = False) -> None:
    """Write to a temporary file, sync and rename it: a reader sees the whole file or none.

    Without ``sync`` a crash of the machine may still lose the file until ``sync_file`` is called.
    A ``private`` file is its owner's alone (mode 0600).

    Raises:
        StoreError: the disk is full or refuses the file; an older file of the name is kept.
    """
    folder, name = os.path.split(path)
    temporary = os.path.join(folder, f".{name}.{os.getpid()}{_TEMPORARY}")
    with _writing(path):
        try:
            with _opened(temporary) as file:
                if private:
                    os.fchmod(file.fileno(), 0o600)
                file.writelines(parts)
                if sync:
                    file.flush()
                    os.fsync(file.fileno())
            os.replace(temporary, path)
        except OSError:
            with suppress(OSError):
                os.unlink(temporary)
            raise


def _opened(path: str) -> BufferedWriter:
    """A new file, and its folder if need be."""
    try:
        return open(path, "wb")
    except FileNotFoundError:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        return open(path, "wb")


def copy_files(source: Path, target: Path) -> None:
    """Copy a file, or every file of a folder; raises as ``read_bytes`` and ``write_bytes`` do."""
    if not source.is_dir():
        write_bytes(target, read_bytes(source))
        return
    for path in sorted(source.rglob("*")):
        if not path.is_dir():
            write_bytes(target / path.relative_to(source), read_bytes(path))


def remove_temporaries(folder: Path) -> None:
    """Remove what killed writers left below a folder into which nobody else writes now."""
    for path in folder.rglob(f".*{_TEMPORARY}"):
        path.unlink(missing_ok=True)


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise unwritable(path, error.strerror or str(error)) from None


def unwritable(path: Path, fault: str) -> StoreError:
    """The error of a file that the disk does not take."""
    return StoreError(
        f"{path}: cannot be written ({fault}). What was finished is kept: make room or correct the "
        "path, and run the same command again."
    )


def sync_file(path: Path) -> None:
    """Wait until the file's content is on the disk; raises as ``write_bytes`` does."""
    with _writing(path), path.open("rb") as file:
        os.fsync(file.fileno())


def write_json(
    path: Path,
    record: Record | Mapping[str, object] | Sequence[object],
    *,
    sync: bool = True,
    compact: bool = False,
) -> None:
    """Write a record, sealed if it can be, or plain JSON data; ``compact`` applies to records."""
    if isinstance(record, Record):
        written = record.sealed() if isinstance(record, Sealed) else record
        text = written.model_dump_json(indent=None if compact else 1)
    else:
        text = json.dumps(record, indent=1, sort_keys=isinstance(record, Mapping))
    write_bytes(path, text.encode(), sync=sync)


R = TypeVar("R", bound=Record)


def read_bytes(path: Path) -> bytes:
    """Read a plain file.

    Raises:
        StoreError: the file is missing.
        ConfigError: it is a link or no file, or too large.
    """
    try:
        return read_plain(path)
    except (FileNotFoundError, NotADirectoryError):
        raise StoreError(
            f"{path}: the file is missing. Restore it, or rerun the previous stage."
        ) from None


def read_record(path: Path, kind: type[R]) -> R:
    """Read a record of the type ``kind``.

    Raises:
        StoreError: the file is missing or is not a valid record.
    """
    data = read_bytes(path)
    try:
        return kind.model_validate_json(data)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "JSON"
        what = f"{path}: not a valid {kind.__name__} ({where}: {first['msg']}). "
        if {fault["type"] for fault in error.errors()} <= _OTHER_FIELDS:
            raise StoreError(
                f"{what}A fedsim of another version than {fedsim.__version__} wrote it, or it was "
                "altered. Read the folder with the fedsim that wrote it, or make it again."
            ) from None
        raise StoreError(
            f"{what}The file is cut or altered; rerun the stage that wrote it."
        ) from None


def read_json(path: Path) -> dict[str, Any]:
    """Read a table of plain JSON.

    Raises:
        StoreError: the file is missing or holds no such table.
    """
    try:
        table = json.loads(read_text(path))
    except (json.JSONDecodeError, RecursionError) as error:
        raise StoreError(f"{path}: not valid JSON ({error}). Restore or delete the file.") from None
    if not isinstance(table, dict):
        raise StoreError(f"{path}: not a table. Restore or delete the file.")
    return table


def read_text(path: Path) -> str:
    """Read a text in UTF-8.

    Raises:
        StoreError: the file is missing or no text.
    """
    data = read_bytes(path)
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise StoreError(f"{path}: not a text ({error}). Restore or delete the file.") from None


def save_tensors(path: Path, tensors: dict[str, Tensor], *, sync: bool = True) -> str:
    """Write a safetensors file atomically and return its SHA-256; it loses the order of names.

    ``sync`` is that of ``write_bytes``.
    """
    from safetensors.torch import save

    data = save({name: value.detach().cpu().contiguous() for name, value in tensors.items()})
    write_bytes(path, data, sync=sync)
    return digest(data)


def load_tensors(
    path: Path, sha256: str | None = None, order: Sequence[str] = ()
) -> dict[str, Tensor]:
    """Read a safetensors file, check its hash if one is given, and restore the order of names.

    Raises:
        StoreError: the file or a tensor is missing, or the file is cut or altered.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load

    data = read_bytes(path)
    if sha256 is not None and digest(data) != sha256:
        raise StoreError(
            f"{path}: the file is cut or altered (SHA-256 differs from the recorded "
            f"{sha256[:12]}). Restore it, or rerun the stage that wrote it."
        )
    try:
        tensors: dict[str, Tensor] = load(data)
    except SafetensorError as error:
        raise StoreError(
            f"{path}: not a complete safetensors file ({error}). Rerun the stage that wrote it."
        ) from None
    if missing := [name for name in order if name not in tensors]:
        raise StoreError(
            f"{path}: the tensor {missing[0]!r} is missing. The file was altered; "
            "rerun the stage that wrote it."
        )
    return {name: tensors[name] for name in order} if order else tensors


def hashes(folder: Path) -> dict[str, str]:
    """Relative name -> SHA-256 of each file, but for tensors whose hash another file holds."""
    paths = {path.relative_to(folder).as_posix(): path for path in _files(folder)}
    return {name: digest_plain(path) for name, path in sorted(paths.items())}


def _files(folder: Path) -> list[Path]:
    return [
        path
        for path in folder.rglob("*")
        if path.is_file()
        and not path.name.startswith(".")
        # Broadcasts are named by their hash; that of other tensors is in the record beside them.
        and path.parent.name != "models"
        and not (path.suffix == ".safetensors" and path.with_suffix(".json").is_file())
    ]


_REMEDY = "Restore it, or delete simulation.json of its cell and simulate again."


def check_hashes(folder: Path, known: Mapping[str, str], remedy: str = _REMEDY) -> None:
    """Compare the files of a folder with their hashes; ``remedy`` ends the message of a fault.

    Raises:
        StoreError: a file is missing, altered, or not among them.
    """
    actual = hashes(folder)
    for name, sha256 in known.items():
        if name not in actual:
            raise StoreError(f"{folder / name}: the file is missing. {remedy}")
        if actual[name] != sha256:
            raise StoreError(f"{folder / name}: the file is cut or altered. {remedy}")
    if added := sorted(actual.keys() - known.keys()):
        raise StoreError(
            f"{folder / added[0]}: it was not there when the hashes were taken. Remove it."
        )


def safetensors_parts(arrays: Mapping[str, npt.NDArray[Any]]) -> list[Buffer]:
    """Bytes of a safetensors file, as buffers that share the arrays' memory.

    The library's ``save`` copies each tensor twice, which is most of the cost of a capture.
    """
    kinds = tuple((name, array.dtype.str, array.shape) for name, array in arrays.items())
    names, header = _header(kinds)
    whole = [np.ascontiguousarray(arrays[name]) for name in names]
    return [header, *(array.data.cast("B") for array in whole if array.nbytes)]


def check_storable(arrays: Mapping[str, npt.NDArray[Any]]) -> None:
    """Raise ``StoreError`` for what no safetensors file can hold."""
    for name, array in arrays.items():
        if array.dtype.str.lstrip("<|") not in _DTYPES:
            raise StoreError(f"{name!r} has the type {array.dtype}, which is not stored")
        if name == "__metadata__" or not name.isprintable():
            raise StoreError(f"{name!r} is no name of a tensor")


@lru_cache(maxsize=16)
def _header(kinds: tuple[tuple[str, str, tuple[int, ...]], ...]) -> tuple[tuple[str, ...], bytes]:
    """The names in the order of the file, and what stands before the tensors."""
    header: dict[str, object] = {}
    end = 0
    for name, dtype, shape in sorted(kinds, key=lambda kind: (-np.dtype(kind[1]).itemsize, kind)):
        start, end = end, end + math.prod(shape) * np.dtype(dtype).itemsize
        header[name] = {
            "dtype": _DTYPES[dtype.lstrip("<|")],
            "shape": list(shape),
            "data_offsets": [start, end],
        }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return tuple(header), struct.pack("<Q", len(text)) + text


_DTYPES = {
    "f8": "F64",
    "f4": "F32",
    "f2": "F16",
    "i8": "I64",
    "i4": "I32",
    "i2": "I16",
    "i1": "I8",
    "u8": "U64",
    "u4": "U32",
    "u2": "U16",
    "u1": "U8",
    "b1": "BOOL",
}
