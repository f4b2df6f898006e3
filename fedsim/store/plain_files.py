"""Plain files: the one place where a file that may be somebody else's is opened.

Run folders are passed between people. A link in one could name any file of whoever opens it, a pipe
would hang and a device or a file with holes would fill the memory, so each of these is refused.
"""

import errno
import hashlib
import os
import stat
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path
from typing import IO

from fedsim.errors import ConfigError

MOST_TEXT = 1 << 28
"""Bytes of the largest record. That of a simulation with a million captures has half of them, so
that half of this would refuse it; twice it would only let a spoilt file take longer to refuse."""
SUFFIXES = (".safetensors", ".pt", ".pth", ".bin", ".npz")
"""Endings of files of state dicts, which ``fedsim.store.tensor_files`` reads."""
_TEXTS = (".json", ".toml", ".txt")
_GROUPS, _MEMBERSHIPS = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
_BLOCKED = {errno.ELOOP: "a link", errno.ENXIO: "a socket or a pipe", errno.EISDIR: "a folder"}


def check_folder(root: Path) -> None:
    """Refuse a run or captures with a link, a pipe, a device or too large a file, before any use.

    The folder itself may be named by a link. What may not be read is skipped, as nobody reads it.

    Raises:
        ConfigError: names the first such file.
    """
    check_path(root)
    for entry in _entries(root):
        if entry.is_symlink() or not entry.is_file(follow_symlinks=False):
            raise _refused(entry.path, "a link" if entry.is_symlink() else "no file")
        _check_size(entry.path, entry.stat(follow_symlinks=False).st_size)


def check_path(root: Path) -> None:
    """Raise ``ConfigError`` for a path that is not UTF-8, which transformers cannot open."""
    try:
        str(root.resolve()).encode()
    except UnicodeEncodeError:
        raise ConfigError(f"{str(root)!r}: the path is not valid UTF-8. Rename it.") from None


def _entries(folder: str | Path) -> Iterator[os.DirEntry[str]]:
    """Everything below a folder but the folders themselves; no link is followed."""
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except (PermissionError, FileNotFoundError):
        return
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            yield from _entries(entry.path)
        else:
            yield entry


def open_plain(path: Path) -> BufferedReader:
    """Open a file for reading.

    Raises:
        ConfigError: it is a link or no file, or larger than such a file can be.
        FileNotFoundError: there is none.
    """
    file = os.fdopen(_descriptor(path, os.O_RDONLY), "rb")
    _check_size(path, os.fstat(file.fileno()).st_size)
    return file


def read_plain(path: Path) -> bytes:
    """The content of a file; raises as ``open_plain``."""
    with open_plain(path) as file:
        try:
            return file.read()
        except MemoryError:
            raise _too_large(path, os.fstat(file.fileno()).st_size) from None


def digest_plain(path: Path) -> str:
    """SHA-256 of a file in hexadecimal, in little memory; raises as ``open_plain``."""
    with open_plain(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def make_private(folder: Path) -> None:
    """Make a folder that its owner alone can open (mode 0700), or close one that is there."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    folder.chmod(0o700)


def open_lock(path: Path) -> IO[str]:
    """Open a file to lock it; it is made if need be, and what it holds is left alone.

    Raises:
        ConfigError: it is a link or no file.
    """
    return os.fdopen(_descriptor(path, os.O_RDWR | os.O_CREAT), "r+")


def _descriptor(path: Path, flags: int) -> int:
    try:
        # Without O_NONBLOCK a pipe would wait for its other end.
        descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    except OSError as error:
        if error.errno in _BLOCKED:
            raise _refused(path, _BLOCKED[error.errno]) from None
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise _refused(path, "no file")
    return descriptor


def _check_size(path: str | Path, size: int) -> None:
    if size > MOST_TEXT and (os.fspath(path).endswith(_TEXTS) or size > memory()):
        raise _too_large(path, size)


def memory() -> int:
    """Bytes that this process may take: the machine's, or what its container or job is granted."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limits = [path.read_text().strip() for path in _limits() if path.is_file()]
    return min([physical, *(int(limit) for limit in limits if limit != "max")])


def _limits() -> Iterator[Path]:
    """Files of the process's control group and of those above it; not all need be there."""
    groups = _MEMBERSHIPS.read_text().splitlines() if _MEMBERSHIPS.is_file() else []
    for _, controllers, path in (group.split(":", 2) for group in groups):
        if controllers in ("", "memory"):  # version 2, and 1
            top, file = (
                _GROUPS / controllers,
                "memory.limit_in_bytes" if controllers else "memory.max",
            )
            group = top / path.strip("/")
            yield from (at / file for at in (group, *group.parents) if at.is_relative_to(top))


def _refused(path: str | Path, what: str) -> ConfigError:
    return ConfigError(
        f"{path}: {what}, where fedsim keeps plain files alone. Remove it, or get the folder again "
        "from whoever made it."
    )


def _too_large(path: str | Path, size: int) -> ConfigError:
    return ConfigError(
        f"{path}: too large to be read ({size / 1e9:.3g} GB). Get the file again from whoever made "
        "it, or give this process more memory."
    )
