"""Hashes of the files of a folder, so that none is changed, added or lost unseen."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from fedsim.errors import StoreError
from fedsim.store.plain_files import digest_plain


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
