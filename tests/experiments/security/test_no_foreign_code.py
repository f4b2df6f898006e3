"""Whatever lies in the working directory or in a folder that is opened, no code of it is run."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from fedsim.config.build import registry
from fedsim.errors import ConfigError
from fedsim.models import TEXT_MODELS, transformer
from tests.experiments.captures.cases import federate, numbered
from tests.experiments.captures.conftest import Held, held
from tests.experiments.conftest import Said

__all__ = ["held"]
GROUPS = ("attacks", "defenses", "metrics", "models", "tasks")
MODULES = ("evil", "torch", "attacks", "typer")


@pytest.fixture
def lured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory: it pretends to be an installed package, and shadows others."""
    package = tmp_path / "evil-1.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: evil\nVersion: 1\n")
    lines = [f"[fedsim.{group}]\nevil = evil:Evil\n" for group in GROUPS]
    (package / "entry_points.txt").write_text("\n".join(lines))
    for name in MODULES:
        (tmp_path / f"{name}.py").write_text("raise SystemExit(77)\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_working_directory_registers_nothing(
    lured: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path in ("", ".", str(lured)):
        monkeypatch.setattr(sys, "path", [*sys.path, path])
        assert registry({}, "fedsim.attacks").keys() == set()


@pytest.mark.some(2)
@pytest.mark.parametrize("command", ["list attacks", "attack captures --attacks embedding_rows"])
def test_a_command_in_a_foreign_folder(command: str, lured: Path, held: Held, said: Said) -> None:
    federate(held, held.model, numbered, lured, model=held.model, tokenizer=held.tokenizer)
    before = list(sys.path)
    code, _, line = said(*command.split())
    assert code in {0, 1}, line
    assert sys.path == before
    assert "evil" not in sys.modules


def test_python_m_in_a_foreign_folder(lured: Path) -> None:
    home = str(Path(transformer.__file__).parents[2])
    environment = {**os.environ, "PYTHONPATH": home}
    command = [sys.executable, "-m", "fedsim", "list", "attacks"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, "dlg" in done.stdout) == (0, True), done.stderr


def test_a_module_of_the_application_is_found_behind_all_others(lured: Path) -> None:
    from fedsim.config.named_code import function_of

    (lured / "my_app.py").write_text("def net(): ...\n")
    try:
        assert function_of("my_app:net", "model").__name__ == "net"
        assert sys.path[-1] == str(lured)
        assert "evil" not in registry({"dlg": object}, "fedsim.attacks")
    finally:
        sys.path.remove(str(lured))


@pytest.mark.parametrize("name", ["config.json", "tokenizer_config.json"])
def test_a_model_with_code_of_its_own(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("asked"))
    for path in Path(TEXT_MODELS["tiny-gpt2"]).iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "evil.py").write_text("raise SystemExit(77)\n")
    table = json.loads((tmp_path / name).read_text()) if (tmp_path / name).exists() else {}
    code = {"AutoTokenizer": [None, "evil.Evil"], "AutoConfig": "evil.Evil"}
    (tmp_path / name).write_text(json.dumps({**table, "auto_map": code}))
    for load in (transformer.tokenizer, lambda path: transformer.architecture(path, 0)):
        with pytest.raises(ConfigError, match=r"names code of its own \(auto_map\)"):
            load(str(tmp_path))


def test_captures_with_code_of_their_own(
    tmp_path: Path, held: Held, said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("asked"))
    federate(held, held.model, numbered, tmp_path, model=held.model, tokenizer=held.tokenizer)
    path = tmp_path / "captures" / "tokenizer" / "tokenizer_config.json"
    table = json.loads(path.read_text()) | {"auto_map": {"AutoTokenizer": [None, "evil.Evil"]}}
    path.write_text(json.dumps(table))
    code, _, line = said("attack", tmp_path / "captures")
    assert (code, line.count("\n")) == (2, 1)
    assert "names code of its own (auto_map)" in line


def test_a_task_of_no_known_architecture(tmp_path: Path, held: Held, said: Said) -> None:
    federate(held, held.model, numbered, tmp_path, model=held.model, tokenizer=held.tokenizer)
    path = tmp_path / "captures" / "task.json"
    unsealed = re.sub(r'"seal": "\w+"', '"seal": null', path.read_text())
    path.write_text(unsealed.replace('"gpt2"', '"evil"'))
    code, _, line = said("attack", tmp_path / "captures")
    assert (code, line.count("\n"), "Restore it" in line) == (2, 1, True), line


_ON_RAY = """
import ray, sys
from attacks.scheduling.cluster import start_ray
stop = start_ray(cpus=1)
print(*ray.get(ray.remote(lambda: list(sys.path)).remote()), sep="\\n")
stop()
"""


@pytest.mark.slow
def test_workers_in_a_foreign_folder(lured: Path) -> None:
    home = str(Path(transformer.__file__).parents[2])
    command = [sys.executable, "-P", "-c", _ON_RAY]
    environment = {**os.environ, "PYTHONPATH": home}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert home in done.stdout
    assert str(lured) not in done.stdout.split()
