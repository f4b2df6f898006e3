"""``kill -9`` at random moments of each stage: the same command again leaves what it would have."""

from __future__ import annotations

import random
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import tomli_w

from experiments.plan.folder import STAGES, RunStage
from tests.apps.cases import IMAGES, merge
from tests.kills import finish, forget, kill_after, made, temporaries

pytestmark = pytest.mark.slow
KILLS = 45
"""Of each stage."""


class Undisturbed:
    """A finished run, the seconds of each stage, and the number of kills of copies of it."""

    def __init__(self, folder: Path) -> None:
        self.root, self.log = folder / "undisturbed", folder / "log"
        changes = {
            "attacks": [
                {"name": "inverting", "steps": 4},
                {"name": "lti", "width": 8, "epochs": 2},
                {"name": "prior_only"},
            ],
            "attack_stage": {"group_size": 1},
        }
        file = folder / "experiment.toml"
        file.write_text(tomli_w.dumps(merge(IMAGES, changes)))
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
    run = tmp_path / "run"
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
