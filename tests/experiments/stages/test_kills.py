"""``kill -9`` at random moments of each stage: the same command again leaves what it would have."""

import os
import random
import shutil
import signal
import time
from collections import Counter
from collections.abc import Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
import tomli_w

from experiments.plan.folder import STAGES, Run, RunStage
from tests.apps.cases import TEXT, merge
from tests.kills import finish, forget, kill_after, made, start, temporaries
from tests.raylets import Nodes, nodes

pytestmark = pytest.mark.slow
KILLS, RAY_KILLS = 45, 4
"""Of each stage; and of each stage and part of a cluster."""


class Undisturbed:
    """A finished run, the seconds of each stage, and the number of kills of copies of it."""

    def __init__(self, folder: Path) -> None:
        self.root, self.log = folder / "undisturbed", folder / "log"
        changes = {
            "auxiliary": {"split": "public", "rows": 8},
            "attacks": [
                {"name": "tag", "steps": 3},
                {"name": "lti", "channels": 8, "width": 8, "epochs": 2},
                {"name": "embedding_rows"},
            ],
            "attack_stage": {"group_size": 1},
        }
        file = folder / "experiment.toml"
        file.write_text(tomli_w.dumps(merge(TEXT, changes)))
        finish(["run", str(file), "--out", str(self.root), "--quiet"], self.log)
        self.seconds = {}
        for stage in reversed(STAGES):  # without the compilation of bytecode
            expected = made(self.root, stage)
            forget(self.root, stage)
            self.seconds[stage] = finish([stage, str(self.root), "--quiet"], self.log)
            assert made(self.root, stage) == expected
        for stage in STAGES[1:]:
            finish([stage, str(self.root), "--quiet"], self.log)
        self.killed: Counter[str] = Counter()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Undisturbed]:
    found = Undisturbed(tmp_path_factory.mktemp("kills"))
    yield found
    print(f"kills: {dict(found.killed)}; seconds undisturbed: {found.seconds}")


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_killed_at_any_moment(
    stage: RunStage, undisturbed: Undisturbed, tmp_path: Path
) -> None:
    expected = made(undisturbed.root, stage)
    rng = random.Random(stage)
    run = tmp_path / undisturbed.root.name
    command = [stage, str(run), "--quiet"]
    while undisturbed.killed[stage] < KILLS:
        shutil.copytree(undisturbed.root, run)
        forget(run, stage)
        moment = rng.uniform(0, undisturbed.seconds[stage])
        if kill_after(command, undisturbed.log, moment):
            left = len(temporaries(run))
            undisturbed.killed.update({stage: 1, f"{stage}, temporaries": left})
            undisturbed.killed[f"{stage}, begun"] += 0 < len(made(run, stage)) < len(expected)
            finish(command, undisturbed.log)
            assert made(run, stage) == expected
            assert temporaries(run) == []
        shutil.rmtree(run)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Nodes]:
    with nodes(cpus=2) as found:
        found.add("second", "--num-cpus=2", f"--address={found.address}")
        yield found


def kill_part(part: str, cluster: Nodes, process: BaseProcess, rng: random.Random) -> bool:
    """Kill the command, a process that works for it, or a node; whether there was one."""
    if part == "command":
        process.kill()
    elif part == "raylet":
        (pid,) = cluster.pids("raylet", "second")
        os.kill(pid, signal.SIGKILL)
        cluster.kill("second")
    else:
        working = [*cluster.pids("ray::stream_job"), *cluster.pids("ray::_Worker")]
        if not working:
            return False
        os.kill(rng.choice(working), signal.SIGKILL)
    return True


@pytest.mark.parametrize("stage", ["simulate", "attack"])
@pytest.mark.parametrize("part", ["command", "worker", "raylet"])
def test_a_cluster_killed_in_parts(
    part: str, stage: RunStage, undisturbed: Undisturbed, cluster: Nodes, tmp_path: Path
) -> None:
    """What is left goes on by itself; but for the command, which is given again."""
    expected, rng = made(undisturbed.root, stage), random.Random(stage + part)
    run, name, longest = tmp_path / undisturbed.root.name, f"{stage} on Ray, {part}", 0.0
    command = [stage, str(run), "--quiet"]
    while undisturbed.killed[name] < RAY_KILLS:
        shutil.copytree(undisturbed.root, run)
        forget(run, stage)
        opened = Run.open(run, [f"attack_stage.address={cluster.address}"])
        Run.create(opened.plan, run)
        started = time.monotonic()
        process = start([*command, "--engine=ray"], undisturbed.log)
        process.join(rng.uniform(0, longest) if longest else None)
        killed = process.exitcode is None and kill_part(part, cluster, process, rng)
        process.join()
        undisturbed.killed[name] += killed
        if killed and part == "command":
            finish(command, undisturbed.log)
        else:
            assert process.exitcode == 0, undisturbed.log.read_text()
            longest = longest or time.monotonic() - started
        assert made(run, stage) == expected
        assert temporaries(run) == []
        if killed and part == "raylet":
            cluster.add("second", "--num-cpus=2", f"--address={cluster.address}")
        shutil.rmtree(run)
