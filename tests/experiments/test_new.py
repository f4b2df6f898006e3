"""``fedsim new``: every template runs as it is written, and is the code of the tutorial."""

import re
import tomllib
from pathlib import Path

import pytest

from docs.measured import ROOT
from experiments.commands.new import CLASSES, KINDS
from experiments.pipeline import execute
from experiments.plan.config import load_plan
from experiments.plan.folder import STAGES, Run
from tests.experiments.conftest import Said

SMALL = ["federation.clients=2", "federation.rounds=1", "capture.rounds=[1]", "task.heldout_rows=4"]


@pytest.mark.some(8)
@pytest.mark.parametrize("kind", KINDS)
def test_a_template_runs_as_it_is(
    kind: str, tmp_path: Path, said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    name = f"my_{kind}"
    code, text, error = said("new", kind, name)
    assert (code, error) == (0, "")
    assert f"fedsim run {name}.toml" in text
    if kind in CLASSES:
        if "attack" in kind:
            error = said("show", f"{name}.toml")[2]
            assert f"The package in {name}/ is not installed: pip install -e {name}." in error
        install(tmp_path / name, name, monkeypatch)
    if "attack" in kind:
        assert f'title: ClassVar[str] = "my {kind.replace("_", " ")}"' in (
            tmp_path / name / f"{name}.py"
        ).read_text("utf-8")
    few = [] if kind == "dataset" else ["attacks=[{ name = 'inverting', steps = 2 }]"]
    few = [f"attacks=[{{ name = '{name}' }}]"] if "attack" in kind else few
    run = Run.create(load_plan(f"{name}.toml", [*SMALL, *few]), tmp_path / "run")
    outcome = execute(run, STAGES, quiet=True)
    assert set(outcome.statuses) == {"done"}
    assert said("new", kind, name)[0] == 2  # nothing is overwritten


def install(folder: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As pip does with ``-e``: the folder on the path, and a record of its entry points."""
    project = tomllib.loads((folder / "pyproject.toml").read_text("utf-8"))["project"]
    info = folder / f"{name}-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.1.0\n")
    ((group, points),) = project["entry-points"].items()
    lines = [f"{key} = {value}\n" for key, value in points.items()]
    (info / "entry_points.txt").write_text(f"[{group}]\n{''.join(lines)}")
    monkeypatch.syspath_prepend(str(folder))


def test_a_template_is_written_again_where_there_was_no_room(
    tmp_path: Path, said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").write_text("no folder can be made here")
    assert said("new", "dataset", "mine")[0] == 2
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
    (tmp_path / "mine").unlink()
    assert said("new", "dataset", "mine")[0] == 0


@pytest.mark.parametrize("kind", CLASSES)
def test_a_template_is_the_code_of_its_tutorial(kind: str) -> None:
    tutorial = f"own-{kind.rpartition('_')[2]}.md"
    page = (ROOT / "docs" / "tutorial" / tutorial).read_text("utf-8")
    template = (ROOT / "experiments" / "templates" / f"{kind}.py").read_text("utf-8")
    assert template.partition("\n\n")[2] in re.findall(r"```python\n(.*?)```", page, re.DOTALL)


def test_bad_names_and_kinds_are_one_line(said: Said, tmp_path: Path) -> None:
    for words, fault in (
        (("atack", "mine"), "Did you mean 'attack'?"),
        (("attack", "../mine"), "no name"),
        (("attack", "Mine"), "no name"),
        (("attack", "class"), "Python has a module or a word of that name"),
        (("defense", "numpy"), "Python has a module"),  # which it would hide, once installed
        (("metric", "json"), "Python has a module"),
        (("metric", "psnr"), "fedsim knows one of that name"),
        (("text_attack", "span"), "fedsim knows one of that name"),
        (("defense", "sign"), "fedsim knows one of that name"),
    ):
        code, _, line = said("new", *words)
        assert (code, line.count("\n"), fault in line) == (2, 1, True)
