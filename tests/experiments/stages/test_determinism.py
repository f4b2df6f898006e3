"""The same file gives the same bits: twice, on either engine, with one client worker or two."""

import json
import sys
from typing import Any

import pytest

from attacks.scheduling.ledger import Ledger
from experiments.pipeline import execute
from experiments.plan.folder import Run
from fedsim.capture import CaptureStore
from tests.apps.cases import IMAGES, TEXT, Make, files_of, merge, simulate
from tests.experiments.stages.cases import STAGES, scores


def captured(
    make_run: Make, base: dict[str, Any], folder: str, **changes: object
) -> dict[str, bytes]:
    run = make_run(base, folder, **changes)
    simulate(run)
    return {**files_of(run.cells[0].folder / "captures"), **files_of(run.cells[0].folder / "truth")}


@pytest.mark.parametrize(("base", "protocol"), [(TEXT, "fedsgd"), (IMAGES, "fedavg")])
def test_the_same_file_twice(base: dict[str, Any], protocol: str, make_run: Make) -> None:
    federation = {"protocol": protocol, "participation": 0.7}
    once = captured(make_run, base, "once", federation=federation)
    assert captured(make_run, base, "twice", federation=federation) == once
    other = captured(make_run, base, "other", federation=federation, seeds=[1])
    assert other.keys() != once.keys() or other != once


def test_dropout_and_noise_repeat_too(make_run: Make) -> None:
    changes = {
        "federation": {"train_mode": True},
        "defenses": [{"name": "gaussian_noise", "std": 0.1}],
    }
    assert captured(make_run, TEXT, "a", **changes) == captured(make_run, TEXT, "b", **changes)


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.parametrize(
    ("base", "protocol"),
    [pytest.param(TEXT, "fedsgd", id="text"), pytest.param(IMAGES, "fedavg", id="images")],
)
def test_engines_give_the_same_bits(
    base: dict[str, Any], protocol: str, make_run: Make, ray_cluster: None
) -> None:
    reference = captured(make_run, base, "in-process", federation={"protocol": protocol})
    federation = {"engine": "ray", "protocol": protocol, "client_workers": 2}
    assert captured(make_run, base, "ray", federation=federation) == reference


def left_by(run: Run) -> dict[str, Any]:
    """Captures and guesses of all cells by their files, and the ledger, without times."""
    files: dict[str, Any] = {}
    for cell in run.cells:
        files |= {f"{cell.name}/{k}": v for k, v in files_of(cell.folder / "captures").items()}
        for name, content in files_of(cell.folder / "guesses").items():
            record = json.loads(content) if name.endswith(".json") else {}
            timed = ("seconds", "peak_bytes", "seal", "trace")
            kept = {key: value for key, value in record.items() if key not in timed}
            files[f"{cell.name}/{name}"] = kept or content
    with Ledger(run.root / "jobs.sqlite") as ledger:
        files["ledger"] = sorted(
            (row.cell, row.label, row.round, row.client, row.state) for row in ledger.rows()
        )
    return files


DURING: dict[str, Any] = {
    "federation": {"rounds": 3, "train_mode": True},
    "defenses": [{"name": "none"}, {"name": "gaussian_noise", "std": 0.001}],
}
LEARNED: dict[str, Any] = {
    "attacks": [{"name": "lti", "epochs": 2, "width": 8}, {"name": "prior_only"}]
}


@pytest.mark.parametrize("base", [TEXT, merge(IMAGES, LEARNED)], ids=["text", "images"])
def test_attacks_during_and_after_the_training_leave_the_same(
    base: dict[str, Any], make_run: Make
) -> None:
    """Training and attacks build networks and draw, which two threads would mix up."""
    files = {}
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for when in ("round", "end"):
            run = make_run(base, when, attack_stage={"when": when}, **DURING)
            execute(run, STAGES, quiet=True)
            files[when] = left_by(run)
    finally:
        sys.setswitchinterval(before)
    assert files["round"] == files["end"]


@pytest.mark.ray
@pytest.mark.slow
def test_ray_attacks_give_the_rows_of_in_process(make_run: Make, ray_cluster: None) -> None:
    reference = make_run(TEXT, "in-process")
    execute(reference, STAGES, quiet=True)
    during = {"when": "round"}
    run = make_run(TEXT, "ray", federation={"engine": "ray"}, attack_stage=during)
    execute(run, STAGES, quiet=True)
    assert scores(run.root) == scores(reference.root)


def test_a_half_done_simulation_is_thrown_away(make_run: Make) -> None:
    run = make_run(IMAGES)
    simulate(run)
    cell = run.cells[0]
    whole = files_of(cell.folder / "captures")
    (cell.folder / "simulation.json").unlink()
    key = CaptureStore(cell.folder / "captures").keys()[-1]
    cell.captures.tensors_path(key).unlink()
    (cell.folder / "captures" / "round-0009").mkdir()
    execute(run, ("simulate",), quiet=True)
    assert files_of(cell.folder / "captures") == whole
