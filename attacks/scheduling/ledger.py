"""The ledger of a run: one row per attack and observation, exactly once, in SQLite."""

from __future__ import annotations

import fcntl
import json
import os
import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import IO

from attacks.scheduling.jobs import JobSpec, discard, settled
from fedsim.api.ledger import LEDGER, LedgerRow, broken, open_ledger, rows_of
from fedsim.errors import ConfigError, StoreError
from fedsim.process import machine
from fedsim.records import JobRecord
from fedsim.store.files import unwritable
from fedsim.store.plain_files import open_lock

_TABLE = """
CREATE TABLE job (
  cell TEXT, label TEXT, round INTEGER, client INTEGER,
  state TEXT NOT NULL
    CHECK (state IN ('queued', 'running', 'done', 'skipped', 'failed', 'timeout', 'exhausted')),
  reason TEXT NOT NULL DEFAULT '',
  seconds REAL NOT NULL DEFAULT 0,
  peak_bytes INTEGER NOT NULL DEFAULT 0,
  attempts INTEGER NOT NULL DEFAULT 0,
  started REAL, ended REAL, worker TEXT NOT NULL DEFAULT '',
  options TEXT NOT NULL,
  PRIMARY KEY (cell, label, round, client)
) STRICT, WITHOUT ROWID
"""
_WHERE = "WHERE cell = ? AND label = ? AND round = ? AND client = ?"
_TRIES, _GLANCE = 5, 0.02
"""Who only looks whether the run is locked holds the lock for less than so many seconds."""


class Ledger:
    """The one writer of ``jobs.sqlite``; its methods may be called from several threads.

    Opening it puts jobs that a killed command left ``running`` back to ``queued``.

    Attributes:
        path: the file, which lies in the run folder.

    Raises:
        StoreError: the file is broken or of another version, or another process is at work on
            the run.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._thread_lock = threading.Lock()
        self._run_lock = lock_run(path)
        try:
            self._connection = open_ledger(path)
        except StoreError:
            self._run_lock.close()
            raise
        self.path = path
        with self._writing():
            self._connection.execute("PRAGMA journal_mode = WAL")
            # What a power failure takes is found again in the jobs' records.
            self._connection.execute("PRAGMA synchronous = NORMAL")
            if self._connection.execute("PRAGMA user_version").fetchone()[0] == 0:
                script = f"BEGIN; {_TABLE}; PRAGMA user_version = {LEDGER}; COMMIT"
                self._connection.executescript(script)
            self._connection.execute("UPDATE job SET state = 'queued' WHERE state = 'running'")

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file and let another process have the run."""
        self._connection.close()
        self._run_lock.close()

    def rows(self) -> list[LedgerRow]:
        """All rows, by cell, label, round and client."""
        with self._thread_lock:
            return rows_of(self._connection)

    def claim(self, spec: JobSpec, *, retry_failed: bool = False) -> list[JobRecord] | None:
        """The records of the job if they are on disk; otherwise None, and the job is queued.

        With ``retry_failed`` it is also queued if it failed, did not end by itself or was skipped.

        Raises:
            ConfigError: the records on disk were made with other options.
        """
        records = settled(spec)
        if records is not None and retry_failed and any(r.status != "done" for r in records):
            records = None
        options = json.dumps(dict(spec.table), sort_keys=True)
        before, _ = self._first(spec)
        if records is not None and before not in (None, options):
            raise ConfigError(
                f"attacks.{spec.label}: {spec.guesses / spec.label} holds guesses made with "
                f"{before}, not {options}. Give the attack another label, or delete that folder."
            )
        with self._writing():
            self._connection.executemany(
                "INSERT OR IGNORE INTO job (cell, label, round, client, state, options) "
                "VALUES (?, ?, ?, ?, 'queued', ?)",
                [(spec.cell, spec.label, key.round, key.client, options) for key in spec.keys],
            )
            if records is None:
                discard(spec)
                self._change(
                    spec, "state = 'queued', reason = '', ended = NULL, options = ?", options
                )
        if records is not None:
            self.finish(spec, records)
        return records

    def start(self, spec: JobSpec) -> JobSpec:
        """Mark the job as running and return it with the number of its attempt."""
        run = replace(spec, attempt=self._first(spec)[1] + 1)
        change = "state = 'running', attempts = ?, worker = ?, started = ?"
        here = f"{os.getpid()}@{machine()}"
        self._update(run, change, run.attempt, here, time.time())
        return run

    def locate(self, spec: JobSpec, worker: str) -> None:
        """Record the worker that runs the job, and the time at which it starts."""
        self._update(spec, "worker = ?, started = ?", worker, time.time())

    def requeue(self, spec: JobSpec, reason: str) -> None:
        """Mark the job as queued again and record the reason."""
        self._update(spec, "state = 'queued', reason = ?", reason)

    def finish(self, spec: JobSpec, records: Sequence[JobRecord]) -> None:
        """Record the final states; a row that was already final keeps its time.

        An interrupted job is not final: it waits for the next command.
        """
        for record in records:
            again = record.status == "interrupted"
            self._update(
                replace(spec, keys=(record.key,)),
                "state = ?, reason = ?, seconds = ?, peak_bytes = ?, attempts = ?, "
                "ended = coalesce(ended, ?)",
                "queued" if again else record.status,
                record.reason,
                record.seconds,
                record.peak_bytes,
                record.attempts,
                None if again else time.time(),
            )

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """One transaction, of one thread at a time."""
        with self._thread_lock:
            try:
                with self._connection:
                    yield
            except sqlite3.OperationalError as error:
                raise unwritable(self.path, str(error)) from None
            except sqlite3.IntegrityError as error:  # made by a fedsim with fewer states
                raise StoreError(broken(self.path, str(error))) from None

    def _first(self, spec: JobSpec) -> tuple[str | None, int]:
        """Options and attempts of the job; the keys of a group share them."""
        where = (spec.cell, spec.label, spec.keys[0].round, spec.keys[0].client)
        with self._thread_lock:
            query = f"SELECT options, attempts FROM job {_WHERE}"
            row = self._connection.execute(query, where).fetchone()
        return (None, 0) if row is None else (str(row[0]), int(row[1]))

    def _update(self, spec: JobSpec, change: str, *values: str | float | None) -> None:
        with self._writing():
            self._change(spec, change, *values)

    def _change(self, spec: JobSpec, change: str, *values: str | float | None) -> None:
        self._connection.executemany(
            f"UPDATE job SET {change} {_WHERE}",
            [(*values, spec.cell, spec.label, key.round, key.client) for key in spec.keys],
        )


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
