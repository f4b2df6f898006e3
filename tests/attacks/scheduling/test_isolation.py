"""Attacks of others that harm the process around them: their own jobs alone suffer."""

import re
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module
from multiprocessing import forkserver
from pathlib import Path
from typing import TypeAlias

import pytest
import torch

from attacks import ATTACKS, attack_classes, attacks_for
from attacks.scheduling import isolation
from attacks.scheduling.isolation import run_serial
from attacks.scheduling.jobs import Demand, JobSpec, plan
from attacks.scheduling.ledger import Ledger
from attacks.scheduling.pool import RayPool
from attacks.scheduling.worker import run_job
from experiments.plan.config import ExperimentConfig, Plan, parse_experiment
from experiments.plan.entries import entries
from experiments.plan.folder import Run
from fedsim.errors import ConfigError
from fedsim.records import JobRecord
from fedsim.store.capture import CaptureStore
from tests.apps.cases import IMAGES, merge, simulate

Rows: TypeAlias = list[tuple[object, ...]]
Tables: TypeAlias = dict[str, dict[str, object]]
DIED = r"the attack ended its process \({}\), start 3"
META = r"the attack returned inputs without plain values .*"
OUTCOMES = {
    **{
        act: ("done", act)
        for act in [
            "float64",
            "patched-torch",
            "patched-fedsim",
            "flags",
            "seeds",
            "chdir",
            "environment",
            "output",
            "thread",
            "closed-files",
            "overwrite",
        ]
    },
    "meta-device": ("failed", META),
    "note": ("failed", r"ValidationError: .*"),
    "exit": ("failed", r"SystemExit: 0 \(fake_hostile\.py:\d+\)"),
    "unprintable": ("failed", r"Unprintable: its message cannot be printed: RuntimeError .*"),
    "broken-json": ("failed", DIED.format("exit code 70")),
    "_exit": ("failed", DIED.format("exit code 0")),
    "segfault": ("failed", DIED.format("signal 11, Segmentation fault")),
    "parent": ("failed", DIED.format("exit code 255")),
    "copy": ("failed", DIED.format("exit code 4")),
    "hang": (
        "timeout",
        r"unfinished: the clock ended it, which killed it after 1 s budget and 0\.5 s grace",
    ),
}
"""What a plug-in does -> the status of its job and its reason on every engine."""
NEIGHBOURS: Tables = {
    "first": {"name": "inverting", "steps": 4},
    "second": {"name": "dlg", "steps": 1},
    "third": {"name": "prior_only"},
}


pytestmark = pytest.mark.usefixtures("fakes")


@pytest.fixture(scope="module")
def captured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The captures of one client of a small LeNet."""
    federation = {"rounds": 1, "clients": 1}
    config = parse_experiment(merge(IMAGES, {"federation": federation}))
    run = Run.create(
        Plan(name=config.name, experiments=(config,)), tmp_path_factory.mktemp("plugins") / "run"
    )
    simulate(run)
    return run.cells[0].captures.root


def jobs_of(captures: Path, folder: Path, tables: Tables, budget: float = 600.0) -> list[JobSpec]:
    """A job of each attack by its label."""
    demand, guesses = Demand(budget=budget, grace=0.5), folder / "guesses"
    return [
        spec
        for label, table in tables.items()
        for spec in plan(captures, guesses, label, table, 0, demand)
    ]


def rows(records: Sequence[JobRecord]) -> Rows:
    """What a record says about the attack, and not about the machine."""
    return [(r.status, r.reason, r.sha256, r.objective, r.steps, r.confidence) for r in records]


@pytest.fixture(scope="module")
def alone(captured: Path, tmp_path_factory: pytest.TempPathFactory) -> Rows:
    """The rows of the neighbours where no plug-in runs."""
    folder = tmp_path_factory.mktemp("alone")
    with Ledger(folder / "jobs.sqlite") as ledger:
        made = rows(run_serial(jobs_of(captured, folder, NEIGHBOURS), ledger))
    assert [row[0] for row in made] == ["done"] * len(NEIGHBOURS)
    return made


def hostile(act: str, folder: Path) -> dict[str, object]:
    return {"name": "fake_hostile", "act": act, "log": str(folder / f"{act}.pids")}


def plugin_jobs(act: str, captures: Path, folder: Path, logs: Path) -> list[JobSpec]:
    """The jobs of a plug-in; the clock ends the one that hangs, and its alone."""
    budget = 1.0 if act == "hang" else 600.0
    return jobs_of(captures, folder, {"plugin": hostile(act, logs)}, budget)


def runs(pid: str) -> bool:
    """Whether a process works, and neither has ended nor waits to be buried."""
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"


def check(act: str, records: Sequence[JobRecord], folder: Path) -> None:
    """The jobs of a plug-in have their outcome, were run no more often, and left no process."""
    status, reason = OUTCOMES[act]
    assert [record.status for record in records] == [status] * len(records), records[0].reason
    assert all(re.fullmatch(reason, record.reason) for record in records), records[0].reason
    pids = [pid for log in folder.glob(f"{act}.*") for pid in log.read_text().split()]
    if act != "hang":  # which a slow machine may kill while it loads
        starts = 3 if reason.endswith("start 3") else 1
        assert len(pids) == len(records) * starts
    deadline = time.monotonic() + 120  # orphans die a moment after their parent
    while left := [pid for pid in pids if runs(pid)]:
        assert time.monotonic() < deadline, f"processes {left} of {act} outlived their job by 120 s"
        time.sleep(0.05)


def test_there_are_twenty_one_of_them() -> None:
    acts = import_module("fake_hostile").ACTS
    assert OUTCOMES.keys() == acts.keys() | {"overwrite"}
    assert len(OUTCOMES) == 21


@pytest.mark.some(30)
@pytest.mark.parametrize("act", OUTCOMES)
def test_a_plugin_harms_its_own_job_alone(
    act: str, captured: Path, alone: Rows, tmp_path: Path
) -> None:
    first, *others = jobs_of(captured, tmp_path, NEIGHBOURS)
    specs = [first, *plugin_jobs(act, captured, tmp_path, tmp_path), *others]
    for _ in range(2):  # the second resumes, and has nothing to do
        with Ledger(tmp_path / "jobs.sqlite") as ledger:
            records = run_serial(specs, ledger)
            assert not any(row.state in ("queued", "running") for row in ledger.rows())
        check(act, [record for record in records if record.attack not in NEIGHBOURS], tmp_path)
        assert rows([record for record in records if record.attack in NEIGHBOURS]) == alone


@pytest.mark.parametrize("fault", [ConnectionRefusedError, BrokenPipeError, EOFError])
def test_a_server_that_is_dying_is_asked_again(
    fault: type[Exception], captured: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was killed, its socket is closed, and it is not known to have ended yet."""
    connect = forkserver._forkserver.connect_to_new_process
    refusals = iter([fault, fault])

    def refuse(descriptors: list[int]) -> object:
        for refusal in refusals:
            raise refusal
        return connect(descriptors)

    monkeypatch.setattr(forkserver._forkserver, "connect_to_new_process", refuse)
    (spec,) = jobs_of(captured, tmp_path, {"prior": {"name": "prior_only"}})
    (record,) = isolation.run_apart(spec)
    assert record.status == "done"


@pytest.mark.slow
@pytest.mark.ray
def test_plugins_harm_their_own_jobs_alone_on_ray(
    captured: Path, alone: Rows, tmp_path: Path, ray_cluster: None
) -> None:
    """All of them one after another, with the neighbours between them."""
    specs = [
        spec
        for act in OUTCOMES
        for spec in (
            *plugin_jobs(act, captured, tmp_path / act, tmp_path),
            *jobs_of(captured, tmp_path / act, NEIGHBOURS),
        )
    ]
    for _ in range(2):
        with Ledger(tmp_path / "jobs.sqlite") as ledger, RayPool(ledger, max_running=1) as pool:
            pool.submit(specs)
            records = pool.drain()
            assert not any(row.state in ("queued", "running") for row in ledger.rows())
        size = 1 + len(NEIGHBOURS)
        for number, act in enumerate(OUTCOMES):
            bad, *others = records[number * size : (number + 1) * size]
            check(act, [bad], tmp_path)
            assert rows(others) == alone


@pytest.mark.parametrize("act", ["float64", "meta-device", "flags", "chdir", "environment"])
def test_settings_changed_within_this_process_are_put_back(
    act: str, captured: Path, alone: Rows, tmp_path: Path
) -> None:
    """What a built-in attack, or a library that it calls, may do."""
    (spec,) = jobs_of(captured, tmp_path / "a", {"plugin": hostile(act, tmp_path)})
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        run_job(spec)
        assert Path.cwd() == tmp_path
    made = [run_job(spec) for spec in jobs_of(captured, tmp_path / "b", NEIGHBOURS)]
    assert rows([record for records in made for record in records]) == alone


def test_which_jobs_run_apart(
    captured: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    apart: list[str] = []
    monkeypatch.setattr(isolation, "run_apart", lambda spec, _: apart.append(spec.label))
    plain, foreign = jobs_of(
        captured, tmp_path, {"plain": {"name": "prior_only"}, "foreign": hostile("note", tmp_path)}
    )
    for spec in (plain, foreign, replace(plain, label="third start", attempt=3)):
        isolation.run(spec)
    key = CaptureStore(captured).tensors_path(plain.keys[0]).with_suffix(".json")
    for label, path, old, new in (
        ("task", captured / "task.json", '"added": ""', '"added": "fake_smoothed"'),
        ("model", captured / "task.json", '"model": "lenet"', '"model": "fake_small"'),
        ("defense", key, r'"defense":\s*(null|\[\s*\])', '"defense": [{"name": "fake_rectify"}]'),
    ):
        copy = tmp_path / label
        shutil.copytree(captured, copy)
        text, count = re.subn(old, new, path.read_text())
        assert count == 1
        unsealed = re.sub(r'"seal":\s*"\w+"', '"seal": null', text)
        (copy / path.relative_to(captured)).write_text(unsealed)
        isolation.run(replace(plain, captures=copy, label=label))
    assert apart == ["foreign", "third start", "task", "model", "defense"]


HARM = """
import os
from dataclasses import dataclass
import torch
from attacks.base import Attack

def harm():
    torch.set_default_dtype(torch.float64)
    torch.set_grad_enabled(False)
    torch.set_flush_denormal(True)
    torch.set_float32_matmul_precision("medium")
    torch.backends.mkldnn.enabled = False
    os.chdir("/")

@dataclass(frozen=True)
class Bad(Attack):
    act: str = "harm"
    def __post_init__(self):
        if self.act == "harm":
            harm()
        if self.act == "exit":
            raise SystemExit(0)
        if self.act == "error":
            raise RuntimeError("no")
    @property
    def grouped_by(self):
        if self.act == "grouping":
            raise RuntimeError("no")
        return "each"
"""
"""A module that harms the process which imports it or builds its attack."""


@pytest.mark.parametrize("when", ["import", "build"])
def test_a_plugin_changes_nothing_where_it_is_imported_and_built(
    when: str, captured: Path, alone: Rows, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / f"{when}_harm.py").write_text(HARM + "harm()\n" * (when == "import"))
    register(tmp_path, f"{when}_harm:Bad", monkeypatch)
    act = {"act": "harm" if when == "build" else ""}
    assert len(entries(experiment({"name": "bad", **act}))) == 1
    assert sys.float_info.min / 2 > 0
    assert torch.backends.mkldnn.enabled
    assert torch.get_float32_matmul_precision() == "highest"
    assert Path.cwd() != Path("/")
    records = [run_job(spec) for spec in jobs_of(captured, tmp_path / "b", NEIGHBOURS)]
    assert rows([record for part in records for record in part]) == alone


@pytest.mark.parametrize(
    ("act", "fault"),
    [("exit", "SystemExit: 0"), ("error", "RuntimeError: no"), ("grouping", "RuntimeError: no")],
)
def test_a_plugin_that_cannot_be_built_is_named(
    act: str, fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / f"{act}_harm.py").write_text(HARM)
    register(tmp_path, f"{act}_harm:Bad", monkeypatch)
    with pytest.raises(ConfigError, match=rf"^attacks\[0\]: bad cannot be used \({fault}\)"):
        entries(experiment({"name": "bad", "act": act}))


def experiment(attack: dict[str, object]) -> ExperimentConfig:
    return parse_experiment({**IMAGES, "attacks": [attack]})


def register(folder: Path, target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install an attack ``bad`` of a package ``bad``, as a user would."""
    (folder / "bad-1.dist-info").mkdir()
    (folder / "bad-1.dist-info" / "METADATA").write_text("Name: bad\nVersion: 1\n")
    points = folder / "bad-1.dist-info" / "entry_points.txt"
    points.write_text(f"[fedsim.attacks]\nbad = {target}\n")
    monkeypatch.syspath_prepend(str(folder))


def test_a_plugin_that_cannot_be_loaded_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even where its import asks to exit; what it has changed is put back."""
    register(tmp_path, "badly:Bad", monkeypatch)
    code = "import sys, torch\ntorch.set_default_dtype(torch.float64)\nsys.exit(0)\n"
    (tmp_path / "badly.py").write_text(code)
    with pytest.raises(ConfigError, match=r"^fedsim.attacks: 'bad' of bad .*SystemExit: 0\)"):
        attack_classes()
    assert torch.get_default_dtype() == torch.float32
    assert attacks_for({"name": "dlg"}) is ATTACKS
