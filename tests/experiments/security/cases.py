"""Run folders, their cells and their state."""

import os
import stat
from pathlib import Path


def cell_of(run: Path) -> Path:
    return next(run.glob("*/cell.json")).parent


def state(folder: Path) -> dict[str, tuple[int, int, str]]:
    """Mode, time of the last change and content of everything below a folder."""
    found = {}
    for path in sorted([folder, *folder.rglob("*")]):
        status, content = path.lstat(), ""
        if path.is_symlink():
            content = os.readlink(path)
        elif stat.S_ISREG(status.st_mode):
            content = str(status.st_size) if status.st_blocks == 0 else path.read_bytes().hex()
        found[str(path.relative_to(folder))] = (status.st_mode, status.st_mtime_ns, content)
    return found
