"""What is installed: five packages from one root, their data files, and the shipped experiments."""

import json
import re
import subprocess
import sys
import tomllib
from importlib import metadata
from importlib.machinery import ModuleSpec
from importlib.resources import files
from importlib.util import find_spec, spec_from_file_location
from pathlib import Path

import pytest
import yaml

import fedsim
from experiments import origin
from experiments.origin import PACKAGES, check_origin
from experiments.plan.cells import make_cells
from experiments.plan.config import load_plan, shipped
from experiments.plan.entries import entries
from fedsim.config.toml_source import read_toml
from fedsim.errors import ConfigError
from fedsim.store.files import SCHEMA
from hatch_build import PARTS

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PINS = dict(
    line.split("==")
    for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    if line and not line.startswith("#")
)


def plain(name: str) -> str:
    """A distribution's name as the package index compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def test_the_five_packages_are_those_that_are_installed() -> None:
    assert ("fedsim", *PARTS) == PACKAGES
    assert tuple(PROJECT["tool"]["importlinter"]["root_packages"]) == PACKAGES
    assert {path.parent.name for path in ROOT.glob("*/__init__.py")} == {*PACKAGES, "benchmarks"}
    check_origin()


def test_a_shadowing_package_is_named_with_both_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "attacks" / "__init__.py"
    other.parent.mkdir()
    other.touch()

    def find(name: str) -> ModuleSpec | None:
        return spec_from_file_location(name, other) if name == "attacks" else find_spec(name)

    monkeypatch.setattr(origin, "find_spec", find)
    with pytest.raises(ConfigError) as error:
        check_origin()
    assert str(error.value) == (
        f"the package 'attacks' was found in {tmp_path}, not next to experiments in {ROOT}. "
        "Install fedsim into a virtual environment of its own, with pip install -e ."
    )


def test_a_shadowing_package_is_one_line_of_the_command(tmp_path: Path) -> None:
    """Python puts the working folder first where a program is started with -c or -m."""
    (tmp_path / "clients").mkdir()
    (tmp_path / "clients" / "__init__.py").touch()
    program = "from experiments.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", program, "--help"], capture_output=True, text=True, cwd=tmp_path
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"fedsim: the package 'clients' was found in {tmp_path}, not")
    assert done.stderr.count("\n") == 1


def test_the_command_also_starts_as_a_module() -> None:
    started = [sys.executable, "-m", "experiments.cli"]
    shown = subprocess.run([*started, "list", "metrics"], capture_output=True, text=True)
    assert (shown.returncode, shown.stderr) == (0, "")
    assert shown.stdout.startswith("mse")
    wrong = subprocess.run([*started, "run", "nonsense"], capture_output=True, text=True)
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert wrong.stderr.startswith("fedsim: 'nonsense' is not an experiment.")


def test_the_citation_names_this_version() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == fedsim.__version__
    assert citation["license"] == PROJECT["project"]["license"]
    assert {"cff-version", "message", "title", "authors", "date-released"} <= citation.keys()


@pytest.mark.parametrize(
    ("package", "name"),
    [
        ("experiments", "configs/quickstart/quickstart.toml"),
        ("experiments.report", "report.html.j2"),
        ("experiments.report", "report.css"),
        ("fedsim.data", "sentences.json"),
        *(
            ("fedsim.models", f"{model}/{name}")
            for model in ("tiny_bert", "tiny_gpt2")
            for name in ("config.json", "tokenizer.json", "tokenizer_config.json")
        ),
    ],
)
def test_data_files_are_found_as_resources(package: str, name: str) -> None:
    text = files(package).joinpath(name).read_text(encoding="utf-8")
    assert len(text) > 50
    if name.endswith(".json"):
        assert json.loads(text)


@pytest.mark.parametrize("name", shipped())
def test_a_shipped_experiment_is_short_and_says_what_it_is(name: str) -> None:
    path = shipped()[name]
    lines = path.read_text(encoding="utf-8").splitlines()
    assert len(lines) < 40
    assert max(map(len, lines)) <= 100
    assert re.match(r"# [A-Z].{20,}", lines[0])
    assert read_toml(path).get("name", name) == name


@pytest.mark.some(4)
@pytest.mark.parametrize("name", shipped())
def test_a_shipped_experiment_can_be_made(name: str, tmp_path: Path) -> None:
    plan = load_plan(name)
    assert plan.name == name
    cells = make_cells(plan, tmp_path)
    assert len(cells) >= len(plan.experiments) > 0
    for experiment in plan.experiments:
        # The null baseline is in every table; some only train.
        labels = [entry.label for entry in entries(experiment) if entry.infers == "rows"]
        assert labels[-1:] == ["prior_only"][: len(labels)]
        assert experiment.auxiliary or not labels  # else the baseline guesses grey, or nothing
        if (run := Path(experiment.task.weights.split("@")[0])).parts[:1] == ("runs",):
            opening = shipped()[name].read_text(encoding="utf-8").split("\nname = ")[0]
            comment = " ".join(opening.replace("#", " ").split()).lower()
            assert f"run {run.parts[1]} first" in comment
    assert list(tmp_path.iterdir()) == []


def test_experiments_that_others_name_are_shipped() -> None:
    wanted = {
        "quickstart",
        "cifar10-dlg",
        "cifar10-inverting",
        "mnist-dlg",
        "cola-rows",
        "rounds-images",
    }
    assert wanted <= shipped().keys()


def test_every_dependency_is_pinned() -> None:
    project = PROJECT["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["dev"]]
    names = {plain(re.split(r"[\[<>=~! ;]", requirement)[0]) for requirement in wanted}
    assert names <= {plain(name) for name in PINS}
    assert {"torch", "flwr", "ray", "transformers"} <= names
    assert re.fullmatch(r"\d+\.\d+\.\d+", PINS["torch"])
    assert PINS["flwr"].startswith("1.41.")
    assert "flwr>=1.41,<2" in project["dependencies"]


def test_each_lower_bound_is_what_make_test_oldest_installs() -> None:
    lines = (ROOT / "constraints-oldest.txt").read_text(encoding="utf-8").splitlines()
    pinned = dict(line.split("==") for line in lines if not line.startswith("#"))
    found = [re.match(r"([\w-]+)>=([\d.]+)", one) for one in PROJECT["project"]["dependencies"]]
    bounds = {one[1]: one[2] for one in found if one and one[1] != "torch"}
    assert pinned.keys() == bounds.keys()
    for name, bound in bounds.items():
        assert [*map(int, pinned[name].split("."))] == [*map(int, bound.split("."))] + [0] * (
            pinned[name].count(".") - bound.count(".")
        )


def test_an_upper_bound_has_its_reason_beside_it() -> None:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    bounded = [line for line in text.splitlines() if re.match(r'\s+"[\w-]+[^"]*<', line)]
    assert len(bounded) > 1
    assert all("  # " in line for line in bounded)


def test_the_version_is_told_once() -> None:
    assert (
        fedsim.__version__
        == PROJECT["project"]["version"]
        == metadata.version("fedsim-eavesdropper")
    )
    assert SCHEMA == 1  # a change of the run folder is a change of this number


def test_the_distribution_has_a_name_of_its_own() -> None:
    assert PROJECT["project"]["name"] != "fedsim"  # the index has another project of this name
    assert PROJECT["project"]["scripts"] == {"fedsim": "fedsim.__main__:main"}
