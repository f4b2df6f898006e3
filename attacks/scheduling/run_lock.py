"""The lock that keeps two commands from working on one run."""

from __future__ import annotations

import fcntl
import time
from pathlib import Path
from typing import IO

from fedsim.errors import StoreError
from fedsim.store.plain_files import open_lock

_TRIES, _GLANCE = 5, 0.02
"""Who only looks whether the run is locked holds the lock for less than so many seconds."""


def lock_run(path: Path) -> IO[str]:
    """Lock the run until the file is closed or the process dies.

    A file of its own, since closing another handle of a database drops SQLite's own locks on it.

    Args:
        path: of the ledger.

    Raises:
        StoreError: another process holds the lock.
        ConfigError: the lock is a link or no file.
    """
    lock = open_lock(path.with_suffix(".lock"))
    for _ in range(_TRIES):
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(_GLANCE)
        else:
            return lock
    lock.close()
    raise StoreError(f"{path}: another process is at work on this run. Wait for it, or stop it.")
