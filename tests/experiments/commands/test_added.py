"""Extras may be deleted from the disk, and commands of other packages are found, broken or not."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import tomli_w

from experiments.commands.help_page import EXTRAS, GROUP
from experiments.origin import PACKAGES
from tests.apps.cases import IMAGES, merge
from tests.experiments.conftest import Said

ROOT = Path(__file__).resolve().parents[3]
CODE = """
def greet(name: str) -> None:
    '''Greet somebody.'''
    print("hello", name)
"""


def fedsim(home: Path, folder: Path, *arguments: str) -> str:
    """What the tool of another home prints in a folder."""
    done = subprocess.run(
        [sys.executable, "-P", "-m", "fedsim", *arguments],
        env={**os.environ, "PYTHONPATH": str(home), "OMP_NUM_THREADS": "1"},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The packages without the folder of the extras."""
    home, without = tmp_path_factory.mktemp("home"), shutil.ignore_patterns("extras", "__pycache__")
    for package in PACKAGES:
        shutil.copytree(ROOT / package, home / package, ignore=without)
    assert not list(home.rglob("extras"))
    return home


def test_help_is_printed_without_the_extras(home: Path, tmp_path: Path) -> None:
    text = fedsim(home, tmp_path, "--help")
    assert "calibrate" in text
    assert not [name for name in EXTRAS if f"\n  {name} " in text]


@pytest.mark.slow
def test_a_run_needs_no_extra(home: Path, tmp_path: Path) -> None:
    small = merge(IMAGES, {"federation": {"rounds": 1}})
    (tmp_path / "small.toml").write_text(tomli_w.dumps(small))
    assert "report/index.html" in fedsim(home, tmp_path, "run", "small.toml", "--quiet")
    assert (tmp_path / "runs" / "small-images" / "findings.json").is_file()


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An installed package with a good command, one that is missing, and one of a taken name."""
    info = tmp_path / "greeter-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: greeter\nVersion: 1\n")
    points = ("greet = greeter:greet", "lost = greeter:lost", "run = greeter:greet")
    (info / "entry_points.txt").write_text(f"[{GROUP}]\n" + "\n".join(points))
    (tmp_path / "greeter.py").write_text(CODE)
    monkeypatch.syspath_prepend(str(tmp_path))


@pytest.mark.usefixtures("package")
def test_commands_of_other_packages(said: Said) -> None:
    code, text, _ = said("--help")
    assert code == 0
    assert "Greet somebody." in text
    assert "fedsim.commands: 'lost' of greeter cannot be" in text
    assert text.count("Run all stages") == 1
    assert said("greet", "Ada")[:2] == (0, "hello Ada\n")
    code, _, error = said("lost")
    assert (code, error.count("\n")) == (2, 1)
    assert "Mend or uninstall it." in error
    assert said("list", "defenses")[0] == 0
