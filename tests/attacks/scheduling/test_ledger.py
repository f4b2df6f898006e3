"""The ledger: one row per job key, exactly once, whatever was killed."""

import os
import pickle
import re
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from attacks.scheduling.isolation import run_serial
from attacks.scheduling.jobs import JobSpec
from attacks.scheduling.ledger import Ledger
from attacks.scheduling.worker import run_job
from fedsim.api.ledger import LedgerRow, read_ledger
from fedsim.errors import ConfigError, StoreError

Jobs = Callable[..., list[JobSpec]]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run" / "jobs.sqlite"


@pytest.fixture
def ledger(path: Path) -> Iterator[Ledger]:
    with Ledger(path) as opened:
        yield opened


def brief(rows: list[LedgerRow]) -> list[tuple[str, str, int, int, str, str]]:
    return [(r.cell, r.label, r.round, r.client, r.state, r.reason) for r in rows]


def test_life_of_a_row(ledger: Ledger, path: Path, jobs: Jobs) -> None:
    spec = jobs()[0]
    assert ledger.claim(spec) is None
    assert ledger.claim(spec) is None
    (row,) = ledger.rows()
    assert (row.state, row.attempts, row.started, row.ended) == ("queued", 0, None, None)
    run = ledger.start(spec)
    assert run.attempt == 1
    ledger.requeue(run, "the worker died")
    assert [(r.state, r.reason) for r in ledger.rows()] == [("queued", "the worker died")]
    run = ledger.start(spec)
    ledger.locate(run, "7@here")
    (row,) = read_ledger(path)
    assert (row.state, row.attempts, row.worker) == ("running", 2, "7@here")
    ledger.finish(run, run_job(run))
    (row,) = ledger.rows()
    assert (row.cell, row.label, row.round, row.client) == ("cell", "fake", 1, 0)
    assert (row.state, row.reason, row.attempts) == ("done", "", 2)
    assert row.started is not None
    assert row.ended is not None
    assert row.started <= row.ended
    assert row.peak_bytes > 0


@pytest.mark.slow
def test_groups_have_a_row_for_each_key(ledger: Ledger, jobs: Jobs) -> None:
    run_serial(jobs("fake_weights") + jobs(cell="other"), ledger)
    keys = [(r.cell, r.label, r.round, r.client) for r in ledger.rows()]
    pairs = [(number, client) for number in (1, 2) for client in (0, 1, 2)]
    assert keys == [("cell", "fake_weights", *pair) for pair in pairs] + [
        ("other", "fake", *pair) for pair in pairs
    ]


def test_records_rebuild_a_lost_ledger(path: Path, jobs: Jobs) -> None:
    with Ledger(path) as ledger:
        run_serial(jobs(act="raise", since=1), ledger)
        before = brief(ledger.rows())
    path.unlink()
    with Ledger(path) as ledger:
        assert run_serial(jobs(act="raise", since=1), ledger)
        assert brief(ledger.rows()) == before


def test_other_options_are_refused(path: Path, ledger: Ledger, jobs: Jobs) -> None:
    run_serial(jobs()[:1], ledger)
    message = 'holds guesses made with .*"name": "fake"}, not .*"pause": 0.5.*another label'
    with pytest.raises(ConfigError, match=message):
        ledger.claim(jobs(pause=0.5)[0])


def test_second_process_is_refused(ledger: Ledger, path: Path) -> None:
    with pytest.raises(StoreError, match=re.escape(f"{path}: another process is at work")):
        Ledger(path)
    assert read_ledger(path) == []


def test_missing(path: Path) -> None:
    with pytest.raises(StoreError, match=re.escape(f"{path}: the file is missing.")):
        read_ledger(path)


def test_not_a_ledger(path: Path) -> None:
    path.parent.mkdir()
    path.write_bytes(b"scores,1,2,3" * 100)
    with pytest.raises(StoreError, match=re.escape(f"{path}: not a whole ledger (file is not a")):
        Ledger(path)
    with pytest.raises(StoreError, match="not a whole ledger"):
        read_ledger(path)


def test_a_full_disk_breaks_no_ledger(
    path: Path, jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Full(sqlite3.Connection):
        def execute(self, *_: object) -> sqlite3.Cursor:
            raise sqlite3.OperationalError("disk I/O error")

    with Ledger(path) as ledger:
        run_serial(jobs()[:1], ledger)
    said = f"^{re.escape(str(path))}: cannot be written \\(disk I/O error\\). What was finished is"
    with monkeypatch.context() as patch:
        connect = sqlite3.connect
        patch.setattr(sqlite3, "connect", lambda *a, **k: connect(*a, **k, factory=Full))
        with pytest.raises(StoreError, match=said):
            Ledger(path)
    with Ledger(path) as ledger:
        assert [row.state for row in ledger.rows()] == ["done"]


def test_cut(path: Path, jobs: Jobs) -> None:
    with Ledger(path) as ledger:
        for cell in range(30):
            ledger.claim(jobs("fake_weights", cell=f"cell-{cell}")[0])
    path.write_bytes(path.read_bytes()[:8192])
    with pytest.raises(StoreError, match=re.escape(f"{path}: not a whole ledger (")):
        Ledger(path)


def test_other_version(path: Path) -> None:
    Ledger(path).close()
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 9")
    connection.close()
    with pytest.raises(StoreError, match=re.escape(f"{path}: the ledger has version 9, and this")):
        Ledger(path)


def test_foreign_database(path: Path) -> None:
    path.parent.mkdir()
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE albums (title)")
    connection.close()
    with pytest.raises(StoreError, match="the ledger has version 0"):
        Ledger(path)


COMMAND = """
import pickle, sys
from pathlib import Path
from attacks.scheduling import isolation
from attacks.scheduling.ledger import Ledger
from attacks.scheduling.isolation import run_serial
isolation.is_foreign = lambda spec: False  # so that it kills the command
with Ledger(Path(sys.argv[1])) as ledger:
    run_serial(pickle.loads(Path(sys.argv[2]).read_bytes()), ledger)
"""


def test_killed_command_goes_on(path: Path, tmp_path: Path, jobs: Jobs) -> None:
    specs = jobs(act="kill", since=2, round=1)
    (tmp_path / "specs").write_bytes(pickle.dumps(specs))
    fakes = Path(__file__).parents[2] / "fakes"
    command = [sys.executable, "-c", COMMAND, str(path), str(tmp_path / "specs")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([*sys.path, str(fakes)])}
    assert subprocess.run(command, env=environment, check=False).returncode == -9
    assert [row.state for row in read_ledger(path)] == ["done", "done", "running"]
    with Ledger(path) as ledger:
        assert [row.state for row in ledger.rows()] == ["done", "done", "queued"]
        disturbed = run_serial(specs, ledger)
        assert [row.state for row in ledger.rows()] == ["done", "done", "done"]
        assert [row.attempts for row in ledger.rows()] == [1, 1, 2]
        quiet = run_serial(jobs(act="kill", since=2, round=1, cell="quiet"), ledger)
    assert [r.sha256 for r in disturbed] == [r.sha256 for r in quiet]
