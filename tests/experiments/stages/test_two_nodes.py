"""Attacks on a cluster whose second node has neither the run folder nor a shared disk."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from experiments.pipeline import execute
from experiments.plan.folder import Run
from fedsim.api.ledger import LedgerRow, read_ledger
from tests.apps.cases import IMAGES, Make, merge
from tests.kills import made
from tests.raylets import nodes

pytestmark = pytest.mark.slow
_PATIENCE = 240.0
_SECOND = hashlib.sha256(b"second").hexdigest()[:6]
"""The name of the second node as the ledger has it."""
_APART = 'mount -t tmpfs none "$0" && hostname second && exec "$@"'
_CHANGES = {
    "federation": {"clients": 6},
    "attacks": [
        {"name": "inverting", "steps": 400},
        {"name": "lti", "width": 16, "epochs": 2},
        {"name": "prior_only"},
    ],
    "attack_stage": {"workers": 2, "group_size": 1},
}


def unshare(folder: Path) -> list[str]:
    """Run what follows on a machine of another name, where an empty disk lies over the folder."""
    return ["unshare", "-m", "-u", "sh", "-c", _APART, str(folder)]


@pytest.fixture
def attacked(make_run: Make) -> Run:
    """A run that was attacked in one process, and has its guesses."""
    run = make_run(IMAGES, "expected", **_CHANGES)
    execute(run, ("simulate", "attack"), quiet=True)
    return run


@pytest.mark.parametrize("killed", [False, True], ids=["alive", "killed"])
def test_a_node_without_the_run_folder(killed: bool, attacked: Run, make_run: Make) -> None:
    with nodes(cpus=1) as cluster:
        run = make_run(merge(IMAGES, _CHANGES), attack_stage={"address": cluster.address})
        execute(run, ("simulate",), quiet=True)
        before = unshare(run.root)
        if subprocess.run([*before, "true"], capture_output=True, check=False).returncode:
            pytest.skip("this machine lets nobody have a mount namespace (unshare -m)")
        cluster.add("second", "--num-cpus=1", f"--address={cluster.address}", before=before)
        code = "from experiments.cli import main; main()"
        arguments = ["attack", str(run.root), "--engine", "ray", "--quiet"]
        process = subprocess.Popen([sys.executable, "-c", code, *arguments])
        try:
            while killed and not (len(_of_second(run, "done")) >= 4 and _of_second(run, "running")):
                assert process.poll() is None
                time.sleep(0.05)
            if killed:
                cluster.kill("second")
            assert process.wait(timeout=_PATIENCE) == 0
        finally:
            process.kill()
    rows = read_ledger(run.root / "jobs.sqlite")
    assert len(rows) == 3 * 2 * 6
    assert {row.state for row in rows} == {"done"}
    machines = Counter(row.worker.partition("@")[2] for row in rows)
    again = [row for row in rows if row.attempts > 1]
    print(f"jobs by machine: {dict(machines)}; started again: {len(again)}")
    assert machines[_SECOND] >= 4
    assert not killed or len(again) >= 2  # the job that found no run folder, and the killed one
    assert len(machines) == 2
    assert made(run.root, "attack") == made(attacked.root, "attack")


def _of_second(run: Run, state: str) -> list[LedgerRow]:
    rows = read_ledger(run.root / "jobs.sqlite") if (run.root / "jobs.sqlite").exists() else []
    return [row for row in rows if row.state == state and row.worker.endswith(f"@{_SECOND}")]
