"""Plug-ins that harm the process of a command, seen from the command line."""

from pathlib import Path

import pytest
import tomli_w

from tests.apps.cases import IMAGES, merge
from tests.experiments.conftest import Said

CODE = """
import os, sys
from dataclasses import dataclass
from fedsim.defenses.base import Defense

@dataclass(frozen=True)
class Harm(Defense):
    act: str = ""

    def on_update(self, update, rng):
        os.chdir("/") if self.act == "chdir" else sys.exit(0)
        return update

    def surrogate(self, update):
        return update
"""


@pytest.fixture
def folder(fakes: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory; a package with the defense ``harm`` is installed elsewhere."""
    package = tmp_path / "site" / "harm-1.dist-info"
    package.mkdir(parents=True)
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: harm\nVersion: 1\n")
    (package / "entry_points.txt").write_text("[fedsim.defenses]\nharm = harm:Harm\n")
    (package.parent / "harm.py").write_text(CODE)
    monkeypatch.syspath_prepend(str(package.parent))
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def write(folder: Path, act: str) -> None:
    hostile = {"name": "fake_hostile", "act": "chdir", "log": str(folder / "log")}
    changes = {
        "federation": {"rounds": 1, "clients": 2},
        "attacks": [hostile, {"name": "prior_only"}],
        "defenses": [{"name": "harm", "act": act}],
    }
    (folder / "small.toml").write_text(tomli_w.dumps(merge(IMAGES, changes)))


def test_another_working_directory_does_not_move_the_run(folder: Path, said: Said) -> None:
    write(folder, "chdir")
    code, _, error = said("run", "small.toml", "--out", "runs/x", "--quiet")
    assert code == 0, error
    assert (folder / "log").exists()
    assert (folder / "runs" / "x" / "report" / "index.html").exists()


def test_a_defense_that_exits_fails_its_client(folder: Path, said: Said) -> None:
    write(folder, "exit")
    code, _, error = said("run", "small.toml", "--out", "runs/x", "--quiet")
    assert code == 2
    assert error.startswith("fedsim: round 1, client 0: SystemExit: 0. The run has ended;"), error
