"""Each stage reads what ``experiments.stages`` says and nothing else: all else is moved away."""

import json
import re
import resource
import shutil
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import experiments.stages
from experiments.pipeline import execute
from experiments.plan.folder import STAGES, Run, RunStage
from fedsim.data import rows
from fedsim.errors import FedsimError, StoreError
from server.app import UtilityMeter
from tests.apps.cases import IMAGES, TEXT, Make, files_of

pytestmark = pytest.mark.slow

ALWAYS = ("experiment.toml", "provenance.json")
BOOKS = ("jobs.sqlite*", "jobs.lock")
"""The ledger, which notes the time of day."""

DP = {"name": "dp_sgd", "clip": 1.0, "epsilon": 8.0}
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "images": (IMAGES, {"defenses": [{"name": "none"}, DP], "probes": {"member": 1}}),
    "texts": (
        TEXT,
        {
            "federation": {"protocol": "fedavg", "batch_size": 1, "local_steps": 2},
            "defenses": [{"name": "none"}, DP],
        },
    ),
    "cohorts": (IMAGES, {"federation": {"clients": 4, "secure_aggregation": 2}}),
}


def promises() -> dict[str, dict[str, list[str]]]:
    """Stage -> ``reads`` or ``writes`` -> patterns of paths, from the table of the package."""
    found: dict[str, dict[str, list[str]]] = {}
    table = str(experiments.stages.__doc__).split("=====\n")[1].split("=====")[0]
    stage = verb = ""
    for line in table.splitlines():
        if match := re.match(r"(\w+) ", line):
            stage = match[1]
        if match := re.match(r"(?:\w+)? +(reads|writes) ", line):
            verb = match[1]
        named = [name.replace("<cell>", "*.*") for name in re.findall(r"``([^`]+)``", line)]
        found.setdefault(stage, {}).setdefault(verb, []).extend(named)
    return found


PROMISES = promises()


def within(path: str, patterns: Iterable[str]) -> bool:
    """Whether a file of a run lies at or below a place that one of the patterns names."""
    parts = path.split("/")
    for pattern in patterns:
        heads = pattern.split("/")
        if len(parts) >= len(heads) and all(map(fnmatch, parts, heads)):
            return True
    return False


@pytest.fixture
def stopped_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever takes time, or memory, takes none, so that equal work leaves equal files."""
    monkeypatch.setattr(time, "monotonic", lambda: 0.0)
    meter = partial(UtilityMeter, _before=0.0)  # it has taken hold of the clock before
    monkeypatch.setattr("server.app.UtilityMeter", meter)
    monkeypatch.setattr(resource, "getrusage", lambda _: SimpleNamespace(ru_maxrss=0))


@contextmanager
def alone(root: Path, stage: RunStage) -> Iterator[dict[str, bytes]]:
    """Only what the stage may read is left in the run folder, and no data set can be loaded."""
    away = root.with_name(f"{root.name}-away")
    shutil.move(root, away)
    visible = {
        name: content
        for name, content in files_of(away).items()
        if within(name, [*ALWAYS, *PROMISES[stage]["reads"]])
    }
    for name, content in visible.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)
    with pytest.MonkeyPatch.context() as patch:
        if stage != "simulate":
            patch.setenv("FEDSIM_HUB", str(root / "no-hub"))
            patch.setattr(rows, "_read", unreachable)
        yield visible
    shutil.rmtree(root)
    shutil.move(away, root)


def unreachable(*_: object) -> None:
    raise AssertionError("a data set was loaded")


def done(run: Run) -> dict[str, bytes]:
    """The files that a run leaves, but for its ledger."""
    return {k: v for k, v in files_of(run.root).items() if not within(k, BOOKS)}


@pytest.mark.parametrize("case", CASES)
def test_a_stage_alone_gives_the_files_of_the_whole_run(
    case: str, make_run: Make, stopped_clock: None
) -> None:
    base, changes = CASES[case]
    run = make_run(base, **changes)
    execute(run, STAGES, quiet=True)
    execute(run, ("report",), quiet=True)  # its page tells how the report was made before
    whole = done(run)
    assert every_file_is_in_the_table(whole)
    for stage in STAGES:
        expected = {k for k in whole if within(k, PROMISES[stage]["writes"])}
        with alone(run.root, stage) as visible:
            assert not visible.keys() & expected
            execute(run, (stage,), quiet=True)
            made = done(run)
        assert made.keys() == visible.keys() | expected, stage
        assert [name for name in made if made[name] != whole[name]] == [], stage


def every_file_is_in_the_table(files: Iterable[str]) -> bool:
    written = [pattern for stage in PROMISES.values() for pattern in stage["writes"]]
    known = ["*.*/cell.json", *ALWAYS, *written]
    return all(within(name, known) for name in files) and all(
        any(within(name, [pattern]) for name in files) for pattern in written
    )


def test_a_stage_needs_all_that_it_may_read(make_run: Make, stopped_clock: None) -> None:
    """Without one of the places it ends with an error, or leaves other files."""
    base, changes = CASES["images"]
    run = make_run(base, **changes)
    execute(run, STAGES, quiet=True)
    whole = done(run)
    for stage in STAGES[1:]:
        for pattern in PROMISES[stage]["reads"]:
            if pattern == "limits.json":  # of a command of its own
                continue
            with alone(run.root, stage) as visible:
                for name in visible:
                    if within(name, [pattern]):
                        (run.root / name).unlink()
                try:
                    execute(run, (stage,), quiet=True)
                except FedsimError:
                    continue
                made = {k: v for k, v in done(run).items() if k not in visible}
                assert made != {k: whole.get(k) for k in made} or not made, (stage, pattern)


def test_without_the_rows_of_each_client_a_budget_is_not_told(make_run: Make) -> None:
    run = make_run(IMAGES, defenses=[DP], attacks=[{"name": "prior_only"}])
    execute(run, ("simulate", "attack"), quiet=True)
    path = run.cells[0].folder / "simulation.json"
    record = json.loads(path.read_text())
    assert record.pop("client_rows") == [667, 667, 666]
    del record["seal"]  # as in the run of an older fedsim
    path.write_text(json.dumps(record))
    with pytest.raises(StoreError) as caught:
        execute(run, ("score",), quiet=True)
    assert str(caught.value) == (
        f"{path}: the number of rows of each client is missing, and the privacy budget depends on "
        f"it. Remove the file and run fedsim simulate {run.root} again."
    )
    path.unlink()
    execute(run, ("simulate", "score"), quiet=True)
