"""What is passed on: no private row, no folder, user or machine of whoever made the run."""

import socket
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from fedsim.api.ledger import read_ledger
from fedsim.data.builtin import Sentences
from fedsim.process import machine
from fedsim.records import ScoreRow
from fedsim.store.rows import read_rows, write_rows
from tests.apps.cases import files_of
from tests.experiments.conftest import Said
from tests.experiments.security.cases import cell_of, state

GUESS = "the guess 4471"


def scored(path: Path) -> list[ScoreRow]:
    return [row for row in read_rows(path, ScoreRow) if row.attack != "prior_only"]


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_redacted_report(copied: Path, said: Said) -> None:
    before = state(copied / "report")
    code, told, _ = said("report", copied, "--redact")
    page = copied / "redacted" / "index.html"
    assert (code, str(page) in told) == (0, True)
    assert state(copied / "report") == before
    assert (mode(page.parent) & 0o055, mode(page) & 0o044) == (0o055, 0o044)
    private = set(Sentences().read("train", range(240))[0])
    files = files_of(page.parent)
    found = {name: content.decode(errors="replace") for name, content in files.items()}
    assert not [name for name, text in found.items() if str(copied.parent) in text]
    assert not [name for name, text in found.items() if any(row in text for row in private)]


@pytest.mark.some(2)
@pytest.mark.parametrize("status", ["done", "failed"])
def test_a_redacted_report_holds_no_reason(status: str, copied: Path, said: Said) -> None:
    """An attack may write what it guessed as the reason of its failure."""
    path = copied / "scores.parquet"
    rows = [
        replace(row, status=status, reason=f"{GUESS} {n}") for n, row in enumerate(scored(path))
    ]
    write_rows(path, ScoreRow, rows)
    pages = {}
    for option in ("--quiet", "--redact"):
        assert said("report", copied, option)[0] == 0
        folder = copied / ("redacted" if option == "--redact" else "report")
        pages[option] = b"".join(files_of(folder).values()).decode(errors="replace")
    assert (GUESS in pages["--quiet"], GUESS in pages["--redact"]) == (True, False)
    word = "Every job is done." if status == "done" else f" {status}</span></p>"
    assert word in pages["--redact"]


@pytest.mark.parametrize("name", ["report", "gallery"])
def test_private_rows_are_their_owners_alone(name: str, copied: Path, said: Said) -> None:
    (copied / name).chmod(0o755)
    assert said("score" if name == "gallery" else "report", copied)[0] == 0
    assert mode(copied / name) == 0o700
    if name == "report":
        assert mode(copied / "report" / "index.html") == 0o600


def test_no_file_of_a_run_names_its_folder(copied: Path, said: Said) -> None:
    assert said("report", copied)[0] == 0
    where = str(copied.parent).encode()
    assert not [name for name, content in files_of(copied).items() if where in content]


def test_the_ledger_does_not_name_the_machine(
    copied: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = read_ledger(copied / "jobs.sqlite")
    assert {row.worker.partition("@")[2] for row in rows} == {machine()}
    before = machine()
    monkeypatch.setattr(socket, "gethostname", lambda: "laptop-of-alice")
    assert before != machine() != "laptop-of-alice"
    assert len(machine()) == 6


def test_captures_have_no_redacted_page(copied: Path, tmp_path: Path, said: Said) -> None:
    alone = tmp_path / "captures"
    (cell_of(copied) / "captures").rename(alone)
    code, _, line = said("report", alone, "--redact")
    assert (code, "--redact: of another" in line) == (2, True)


def test_only_report_redacts(copied: Path, said: Said) -> None:
    code, _, line = said("run", copied, "--redact")
    assert (code, "--redact" in line) == (2, True)
