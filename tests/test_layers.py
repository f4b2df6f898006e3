"""Who may import whom, and what no file may do."""

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import fedsim
from experiments.origin import PACKAGES
from fedsim import plugins
from fedsim.api import calls as at_first_use
from tests.apps.cases import IMAGES, Make, simulate

ROOT = Path(__file__).resolve().parent.parent
FILES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))

BORDERS = {
    "flwr": {
        "clients/app.py",
        "clients/canary_mod.py",
        "clients/truth_mod.py",
        "experiments/attest/guard_mod.py",
        "experiments/stages/simulate.py",
        "fedsim/wire.py",
        *(str(path.relative_to(ROOT)) for path in (ROOT / "server").rglob("*.py")),
    },
    "ray": {
        "attacks/scheduling/cluster.py",
        "attacks/scheduling/pool.py",
        "server/grids/ray.py",
    },
    "datasets": {
        "fedsim/data/tables.py",
    },
    "peft": {"fedsim/models/adapters.py", "fedsim/models/prompts.py"},
    "pickle": set[str](),
    "dill": set[str](),
    "cloudpickle": set[str](),
    "joblib": set[str](),
    "shelve": set[str](),
    "marshal": set[str](),
    "yaml": set[str](),
}
"""Top-level package -> the only files that may import it, at any depth of the code."""


@cache
def nodes(path: Path) -> list[ast.AST]:
    return list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))


@cache
def imports(path: Path) -> frozenset[str]:
    """Every module that a file imports, inside functions and under TYPE_CHECKING too."""
    return frozenset(_imports(path))


def _imports(path: Path) -> Iterator[str]:
    for node in nodes(path):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield str(node.module)
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def calls(path: Path) -> Iterator[tuple[str, set[str]]]:
    """Every call of a file as dotted name, and the keywords that are not plainly false."""
    for node in nodes(path):
        if isinstance(node, ast.Call):
            keywords = {
                str(word.arg)
                for word in node.keywords
                if not (isinstance(word.value, ast.Constant) and word.value.value is False)
            }
            yield ast.unparse(node.func), keywords


def names(paths: list[Path]) -> list[str]:
    return [str(path.relative_to(ROOT)) for path in paths]


def test_there_are_files_to_look_at() -> None:
    assert {path.parent.name for path in FILES} > {*PACKAGES, "grids", "tasks", "data"}


def test_the_contracts_of_import_linter_hold() -> None:
    # A process of its own: the linter forks, and this one may hold a Ray cluster.
    linter = Path(sys.executable).parent / "lint-imports"
    done = subprocess.run([linter, "--no-cache"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 broken" in done.stdout


@pytest.mark.parametrize("package", BORDERS)
def test_a_library_stays_at_its_border(package: str) -> None:
    users = {
        name
        for name, path in zip(names(FILES), FILES, strict=True)
        if any(module.split(".")[0] == package for module in imports(path))
    }
    assert users <= BORDERS[package]


def test_flwr_and_ray_are_found_where_they_are() -> None:
    """The search sees imports at the top of a file and inside a function."""
    assert "flwr.app" in imports(ROOT / "fedsim/wire.py")
    assert "ray" in imports(ROOT / "attacks/scheduling/pool.py")


@pytest.mark.parametrize("package", ["attacks", "server"])
def test_attacks_and_server_never_name_the_truth(package: str) -> None:
    for path in (ROOT / package).rglob("*.py"):
        assert not [module for module in imports(path) if module.startswith("fedsim.store.truth")]
        strings = {
            node.value
            for node in nodes(path)
            if isinstance(node, ast.Constant) and isinstance(node.value, str)
        }
        assert not strings & {"truth", "truth/", "fedsim.store.truth"}


@pytest.mark.parametrize("package", ["attacks", "experiments"])
def test_defenses_are_known_by_what_they_say_and_not_by_their_class(package: str) -> None:
    """So that one of another package is attacked and bounded as a built-in one is."""
    interface = {"__init__", "base", "chain", "encoding", "strength"}
    files = (ROOT / "fedsim/defenses").glob("*.py")
    classes = {f"fedsim.defenses.{path.stem}" for path in files if path.stem not in interface}
    assert len(classes) > 10
    for path in (ROOT / package).rglob("*.py"):
        assert not classes & imports(path), path


def test_nothing_that_is_read_can_run_code() -> None:
    forbidden = {"torch.load", "torch.save", "yaml.load", "eval", "exec", "os.system", "np.load"}
    # Files of other frameworks are read in one place, and nothing but tensors from them.
    border = ROOT / "fedsim/store/tensor_files.py"
    for path in FILES:
        for name, keywords in calls(path):
            where = f"{path.name}: {name}"
            safe = name == "np.load" or (name == "torch.load" and "weights_only" in keywords)
            assert name not in forbidden or (path == border and safe), where
            assert not keywords & {"trust_remote_code", "allow_pickle", "shell"}, where


def test_the_search_for_calls_finds_them(tmp_path: Path) -> None:
    file = tmp_path / "bad.py"
    file.write_text(
        "def f():\n    load(x, trust_remote_code=True)\n    torch.load(y, weights=False)"
    )
    assert list(calls(file)) == [("load", {"trust_remote_code"}), ("torch.load", set())]


def test_captures_of_images_are_attacked_without_flower_ray_and_transformers(
    make_run: Make, tmp_path: Path
) -> None:
    attack = {"name": "inverting", "steps": 1}
    run = make_run(IMAGES, federation={"rounds": 1, "clients": 1}, attacks=[attack])
    simulate(run)
    program = (
        "import atexit, sys\n"
        "unwanted = {'flwr', 'ray', 'transformers'}\n"
        "atexit.register(lambda: print(sorted(unwanted & sys.modules.keys())))\n"
        f"sys.argv = ['fedsim', 'attack', {str(run.root)!r}, '--quiet']\n"
        "from experiments.cli import main\n"
        "main()\n"
    )
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=environment,
        check=True,
    )
    said, imported = done.stdout.splitlines()
    assert "1 done" in said
    assert imported == "[]"


def test_imports_stand_before_code() -> None:
    """Ruff lets them follow a block of TYPE_CHECKING, so that two modules in one file pass it."""
    late = []
    for path in FILES:
        (module, *_) = nodes(path)
        assert isinstance(module, ast.Module)
        body = module.body
        plain = [isinstance(node, ast.Import | ast.ImportFrom) for node in body]
        first = next((at for at, node in enumerate(body) if _is_code(node)), len(body))
        late += [f"{path}:{body[at].lineno}" for at in range(first, len(body)) if plain[at]]
    assert not late


def _is_code(node: ast.stmt) -> bool:
    is_doc = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    return not is_doc and not isinstance(node, ast.Import | ast.ImportFrom)


def test_extras_import_fedsim_and_nothing_above_it() -> None:
    """The import contract names each package; this finds one that was added since."""
    for path in (ROOT / "experiments/extras").rglob("*.py"):
        ours = {name for name in imports(path) if name.split(".")[0] in PACKAGES}
        inner = {name for name in ours if not name.startswith("experiments.extras")}
        assert not [name for name in inner if name.split(".")[0] != "fedsim"], path


@pytest.mark.parametrize("module", [fedsim, plugins, at_first_use])
def test_names_imported_at_their_first_use_are_at_their_homes(module: Any) -> None:
    homes = vars(module).get("_HOMES") or vars(module)["_OFFERED"]
    assert [name for name in homes if not hasattr(module, name)] == []


def test_no_value_is_named_by_a_word_that_names_nothing() -> None:
    stored = {ROOT / "experiments/bounds/records.py"}  # its `one` and `all` are keys of a file
    for path in {*FILES} - stored:
        bound = {node.id for node in nodes(path) if isinstance(node, ast.Name)}
        assert not bound & {"found", "told", "one", "own"}, path
