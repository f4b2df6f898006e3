"""``task.model = "module:Net"``: code that the user names is run, what a folder names is not."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from experiments.pipeline import execute
from experiments.plan.config import load_plan
from experiments.plan.folder import STAGES, Run
from fedsim.config import named_code
from tests.experiments.conftest import Said

NET = """
from torch import nn


class Net(nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, 2)
        self.norm = nn.BatchNorm2d(4)
        self.head = nn.Linear(4 * 15 * 15, num_classes)

    def forward(self, x):
        return self.head(self.norm(self.conv(x)).relu().flatten(1))


def ten():
    return Net(10)
"""
EXPERIMENT = """
name = "own"
attacks = [{ name = "inverting", steps = 2 }]
[task]
model = "%s"
dataset = "shapes"
heldout_rows = 4
[federation]
engine = "%s"
clients = 2
rounds = 1
batch_size = 1
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The working directory, with a module of the user's; nothing is allowed yet."""
    (tmp_path / "hospital_net.py").write_text(NET)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(named_code.ALLOWED, "{}")
    before = list(sys.path)
    yield tmp_path
    sys.path[:] = before
    sys.modules.pop("hospital_net", None)


def written(place: Path, model: str, engine: str = "in-process") -> str:
    (place / "own.toml").write_text(EXPERIMENT % (model, engine))
    return "own.toml"


@pytest.mark.some(2)
@pytest.mark.parametrize("model", ["hospital_net.py:Net", "hospital_net:ten"])
def test_a_network_of_the_user_is_trained_and_attacked(place: Path, model: str) -> None:
    run = Run.create(load_plan(written(place, model)), place / "run")
    outcome = execute(run, STAGES[:3], quiet=True)
    assert outcome.statuses == {"done": 2}
    (cell,) = run.cells
    assert "norm.running_mean" in cell.captures.load(cell.captures.keys()[0]).sent


@pytest.mark.slow
@pytest.mark.ray
def test_a_network_of_the_user_on_ray(place: Path, ray_cluster: None) -> None:
    """Ray's workers may be older than the file: what they need travels with the environment."""
    import ray

    plan = load_plan(written(place, "hospital_net:Net", "ray"))
    kept = {named_code.ALLOWED: os.environ[named_code.ALLOWED]}
    asked = ray.remote(lambda: named_code.is_allowed("hospital_net:Net"))
    assert ray.get(asked.options(runtime_env={"env_vars": kept}).remote())
    assert named_code.environment() == kept
    assert plan.experiments[0].federation.engine == "ray"


@pytest.mark.slow
def test_a_run_folder_names_code_in_vain(
    place: Path, said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = written(place, "hospital_net:Net")
    assert said("run", file, "--quiet")[0] == 0
    monkeypatch.setenv(named_code.ALLOWED, "{}")
    sys.modules.pop("hospital_net", None)
    (place / "hospital_net.py").write_text("raise SystemExit('imported')\n")
    for command in ("report", "score"):
        assert said(command, "runs/own")[0] == 0, command
    for command in ("attack", "run", "doctor", "limits"):
        code, _, line = said(command, "runs/own")
        assert (code, line.count("\n")) == (2, 1), command
        assert "no code that a run folder names is run. Name the experiment file" in line
    assert "hospital_net" not in sys.modules


@pytest.mark.parametrize("name", ["os:getcwd", "nowhere:Net", "hospital_net:Lost", "lost.py:Net"])
def test_what_makes_no_network_is_refused(place: Path, name: str, said: Said) -> None:
    code, _, line = said("run", written(place, name))
    assert (code, line.count("\n")) == (2, 1)
    assert line.startswith("fedsim: task.model: ")


def test_no_data_set_and_no_folder_is_taken_for_code() -> None:
    before = os.environ.get(named_code.ALLOWED)
    assert named_code.is_named("a.b:Net")
    assert named_code.is_named("folder/net.py:Net")
    for name in ("nyu-mll/glue:cola", "lenet", "s3://bucket/run", "a.b:", ":Net", "a..b:Net"):
        assert not named_code.is_named(name), name
    assert os.environ.get(named_code.ALLOWED) == before
