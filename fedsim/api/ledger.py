"""The ledger of a run, read: a row per attack and observation, who works on it, what is forming."""

import base64
import fcntl
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from fedsim.errors import StoreError
from fedsim.records import State
from fedsim.store.files import Record, read_record, unwritable
from fedsim.store.plain_files import open_plain

LEDGER = 2
"""Version of the file: labels and options of the first hold options that have their defaults, so
that a run begun with it is finished by the fedsim that began it."""


@dataclass(frozen=True, slots=True)
class LedgerRow:
    """One job key.

    Attributes:
        attempts: number of starts, including those of commands that were killed.
        started: Unix time; None before the first start.
        ended: Unix time; None until the state is final.
        worker: ``<process id>@<machine>`` of the last attempt, the latter as a hash.
    """

    cell: str
    label: str
    round: int
    client: int
    state: State
    reason: str
    seconds: float
    peak_bytes: int
    attempts: int
    started: float | None
    ended: float | None
    worker: str


def read_ledger(path: Path) -> list[LedgerRow]:
    """All rows of a ledger; safe while another process writes it."""
    if not path.exists():
        raise StoreError(f"{path}: the file is missing. Run the attack stage first.")
    with closing(open_ledger(path)) as connection:
        return rows_of(connection)


def rows_of(connection: sqlite3.Connection) -> list[LedgerRow]:
    """All rows, by cell, label, round and client."""
    columns = ", ".join(LedgerRow.__slots__)
    query = f"SELECT {columns} FROM job ORDER BY cell, label, round, client"
    return [LedgerRow(*row) for row in connection.execute(query)]


def open_ledger(path: Path) -> sqlite3.Connection:
    """Open a ledger after a check of the whole file.

    Raises:
        StoreError: it is broken, of another version, or cannot be written.
    """
    try:
        connection = sqlite3.connect(path, check_same_thread=False, timeout=30)
    except sqlite3.OperationalError as error:
        raise unwritable(path, str(error)) from None
    try:
        (verdict,) = connection.execute("PRAGMA quick_check(1)").fetchone()
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except sqlite3.DatabaseError as error:
        connection.close()
        if isinstance(error, sqlite3.OperationalError):  # the disk; the file may be whole
            raise unwritable(path, str(error)) from None
        raise StoreError(broken(path, str(error))) from None
    if verdict != "ok":
        connection.close()
        raise StoreError(broken(path, str(verdict).splitlines()[0]))
    if tables and version != LEDGER:
        connection.close()
        raise StoreError(
            f"{path}: the ledger has version {version}, and this fedsim writes {LEDGER}. "
            "Use the fedsim that wrote the run, or start a new run folder."
        )
    return connection


def broken(path: Path, fault: str) -> str:
    """The message about a ledger that is not whole."""
    return (
        f"{path}: not a whole ledger ({fault}). "
        "Move the file away and run the attack stage again; finished jobs are found on disk."
    )


def locked(path: Path) -> bool:
    """Whether a process is at work on the run; for a moment, this takes the lock itself.

    Args:
        path: of the ledger.
    """
    try:
        with open_plain(path.with_suffix(".lock")) as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except FileNotFoundError:
        return False
    return False


FILE = "live.json"


class Forming(Record):
    """A running job.

    Attributes:
        objective: None before the first.
        text: the guess so far, if it is one.
        image: the guess so far as a PNG file in Base64; empty if it is none.
    """

    phase: str
    step: int
    objective: float | None
    text: str
    image: str = ""

    @property
    def picture(self) -> bytes:
        """The PNG file."""
        return base64.b64decode(self.image)


class LiveRecord(Record):
    """``live.json``: the running jobs by the name of their first capture's row in the ledger."""

    jobs: dict[str, Forming]


def read_live(run: Path) -> dict[str, Forming]:
    """The running jobs; none without a file.

    Raises:
        FedsimError: the file is broken, or no file.
    """
    path = run / FILE
    return read_record(path, LiveRecord).jobs if path.exists() else {}
