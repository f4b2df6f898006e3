"""In a wheel every package lies below ``fedsim``, and nothing else is installed."""

import os
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from hatchling.builders.sdist import SdistBuilder
from hatchling.builders.wheel import WheelBuilder

from fedsim import __version__
from hatch_build import PARTS, moved

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(ROOT, tmp_path_factory.mktemp("wheel"))


def built(root: Path, folder: Path) -> Path:
    """The wheel of a checkout or of an unpacked source distribution."""
    (path,) = WheelBuilder(str(root)).build(directory=str(folder), versions=["standard"])
    return Path(path)


def test_a_wheel_installs_fedsim_alone(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as packed:
        names = packed.namelist()
        source = {n: packed.read(n).decode() for n in names if n.endswith(".py")}
    assert {name.split("/")[0] for name in names} == {
        "fedsim",
        f"fedsim_eavesdropper-{__version__}.dist-info",
    }
    assert "fedsim/models/tiny_gpt2/tokenizer.json" in names
    assert "fedsim/experiments/configs/quickstart/quickstart.toml" in names
    for part in PARTS:
        assert {f"fedsim/{part}/__init__.py", f"fedsim/{part}/py.typed"} <= set(names)
        assert not any(f"\nfrom {part}" in text for text in source.values())
    assert '"Eavesdropper": "fedsim.server.eavesdropper"' in source["fedsim/__init__.py"]


@pytest.mark.slow
def test_plugins_and_readers_import_from_a_wheel(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(tmp_path / "site")
    template = (ROOT / "experiments/templates/attack.py").read_text("utf-8")
    (tmp_path / "mine.py").write_text(template)
    program = (
        "import mine, fedsim\n"
        "from fedsim.api import Run\n"
        "from fedsim.api.calls import render\n"
        "print(fedsim.__file__, mine.ClassMean.__mro__[1].__module__, render.__module__)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(tmp_path / "site")},
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )
    assert done.stdout.split() == [
        str(tmp_path / "site" / "fedsim" / "__init__.py"),
        "fedsim.attacks.base",
        "fedsim.experiments.report.templates",
    ], done.stderr


PAGES = (
    *(ROOT / "experiments/templates").glob("*.py"),
    *(ROOT / "docs/tutorial").glob("*.md"),
    *(ROOT / "docs/how-to").glob("*.md"),
    *(ROOT / "docs/notebooks").glob("*.ipynb"),
)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_what_users_copy_imports_nothing_that_a_wheel_lacks(path: Path) -> None:
    inner = re.compile(rf"\b(?:from|import) (?:{'|'.join(PARTS)})\b[^\n]*")
    assert not inner.findall(path.read_text("utf-8"))


@pytest.mark.slow
def test_a_source_distribution_makes_the_same_wheel(wheel: Path, tmp_path: Path) -> None:
    (packed,) = SdistBuilder(str(ROOT)).build(directory=str(tmp_path), versions=["standard"])
    with tarfile.open(packed) as archive:
        archive.extractall(tmp_path, filter="data")
    (unpacked,) = (path for path in tmp_path.iterdir() if path.is_dir())
    checkout, source = (zipfile.ZipFile(path) for path in (wheel, built(unpacked, tmp_path)))
    assert {each.filename: each.CRC for each in checkout.infolist()} == {
        each.filename: each.CRC for each in source.infolist()
    }


def test_imports_and_names_of_modules_are_moved() -> None:
    source = 'from attacks.base import Attack\nx = "é", "server.app:app", "server.no", "attacks"\n'
    assert moved(source, ROOT) == (
        "from fedsim.attacks.base import Attack\n"
        'x = "é", "fedsim.server.app:app", "server.no", "attacks"\n'
    )
    literals = "r'server.app', ('é', '''server.app'''), rb'server.app', f'server.app:{x}'"
    assert moved(literals, ROOT) == (
        "r'fedsim.server.app', ('é', '''fedsim.server.app'''), rb'server.app', f'server.app:{x}'"
    )
    with pytest.raises(ValueError, match=r"line 1: write 'server\.app' as one"):
        moved("'server.' 'app'\n", ROOT)
    with pytest.raises(ValueError, match=r"line 1: write 'from"):
        moved("import attacks.base\n", ROOT)
