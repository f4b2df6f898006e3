"""``fedsim rm``."""

import io
from pathlib import Path

import pytest

from tests.apps.cases import files_of
from tests.experiments.conftest import Said


def test_captures_are_removed_and_the_report_stays(
    copied: Path, said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    captures = sorted(copied.glob("*/captures"))
    for answer, status in (("", 2), ("n\n", 1)):
        monkeypatch.setattr("sys.stdin", io.StringIO(answer))
        stopped = said("rm", copied, "--captures")
        assert (stopped[0], "Pass --yes" in stopped[2]) == (status, status == 2)
        assert all(path.exists() for path in captures)
    code, out, _ = said("rm", copied, "--captures", "--yes")
    assert (code, out.startswith(f"{copied}: freed ")) == (0, True)
    assert not any(path.exists() for path in captures)
    assert "not simulated yet" in said("attack", copied)[2]
    assert said("report", copied)[0] == 0
    assert said("rm", copied, "--yes")[0] == 0
    assert not copied.exists()


def test_only_runs_are_removed(copied: Path, said: Said, tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    assert "no run folder" in said("rm", tmp_path / "notes", "--yes")[2]
    (copied / "mine").mkdir()
    before = files_of(copied).keys()
    assert "is no part of a run" in said("rm", copied, "--yes")[2]
    assert files_of(copied).keys() == before
