"""In a wheel every package lies below ``fedsim``, and nothing else is installed."""

import zipfile
from pathlib import Path

import pytest
from hatchling.builders.wheel import WheelBuilder

from hatch_build import PARTS, moved

ROOT = Path(__file__).parents[1]


def test_a_wheel_installs_fedsim_alone(tmp_path: Path) -> None:
    (built,) = WheelBuilder(str(ROOT)).build(directory=str(tmp_path), versions=["standard"])
    with zipfile.ZipFile(built) as wheel:
        names = wheel.namelist()
        source = {n: wheel.read(n).decode() for n in names if n.endswith(".py")}
    assert {name.split("/")[0] for name in names} == {"fedsim", "fedsim-0.1.0.dist-info"}
    assert "fedsim/models/tiny_gpt2/tokenizer.json" in names
    assert "fedsim/experiments/configs/quickstart/quickstart.toml" in names
    for part in PARTS:
        assert {f"fedsim/{part}/__init__.py", f"fedsim/{part}/py.typed"} <= set(names)
        assert not any(f"\nfrom {part}" in text for text in source.values())
    assert '"Eavesdropper": "fedsim.server.eavesdropper"' in source["fedsim/__init__.py"]


def test_imports_and_names_of_modules_are_moved() -> None:
    source = 'from attacks.base import Attack\nx = "é", "server.app:app", "server.no", "attacks"\n'
    assert moved(source, ROOT) == (
        "from fedsim.attacks.base import Attack\n"
        'x = "é", "fedsim.server.app:app", "server.no", "attacks"\n'
    )
    with pytest.raises(ValueError, match=r"line 1: write 'from"):
        moved("import attacks.base\n", ROOT)
