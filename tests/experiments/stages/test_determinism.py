"""The same file gives the same bits: twice, on either engine, with one client worker or two."""

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

from experiments.pipeline import execute
from fedsim.store.capture import CaptureStore
from tests.apps.cases import IMAGES, TEXT, Make, files_of, left_by, merge, simulate
from tests.experiments.stages.cases import STAGES, scores


def captured(
    make_run: Make, base: dict[str, Any], folder: str, **changes: object
) -> dict[str, bytes]:
    run = make_run(base, folder, **changes)
    simulate(run)
    return {**files_of(run.cells[0].folder / "captures"), **files_of(run.cells[0].folder / "truth")}


@pytest.mark.some(2)
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


DURING: dict[str, Any] = {
    "federation": {"rounds": 3, "train_mode": True},
    "defenses": [{"name": "none"}, {"name": "gaussian_noise", "std": 0.001}],
}
LEARNED: dict[str, Any] = {
    "attacks": [{"name": "lti", "epochs": 2, "width": 8}, {"name": "prior_only"}]
}


def attacked(
    make_run: Make, base: dict[str, Any], folder: str, **changes: object
) -> dict[str, Any]:
    run = make_run(merge(base, DURING), folder, **changes)
    execute(run, STAGES, quiet=True)
    return left_by(run)


@pytest.mark.some(2)
@pytest.mark.usefixtures("eager_threads")
@pytest.mark.parametrize("base", [TEXT, merge(IMAGES, LEARNED)], ids=["text", "images"])
def test_attacks_during_and_after_the_training_leave_the_same(
    base: dict[str, Any], make_run: Make
) -> None:
    """Training and attacks build networks and draw, which two threads would mix up."""
    during, after = (
        attacked(make_run, base, when, attack_stage={"when": when}) for when in ("round", "end")
    )
    assert during == after


@pytest.mark.slow
@pytest.mark.usefixtures("eager_threads")
def test_two_runs_in_two_threads_leave_what_each_leaves_alone(make_run: Make) -> None:
    bases = {"text": TEXT, "images": merge(IMAGES, LEARNED)}
    alone = {name: attacked(make_run, base, name) for name, base in bases.items()}
    with ThreadPoolExecutor(2) as threads:
        both = {
            name: threads.submit(attacked, make_run, base, f"{name}-beside")
            for name, base in bases.items()
        }
    assert {name: run.result() for name, run in both.items()} == alone


@contextmanager
def busy(processes: int) -> Iterator[None]:
    command = [sys.executable, "-c", "while True: pass"]
    others = [subprocess.Popen(command) for _ in range(processes)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.usefixtures("eager_threads")
@pytest.mark.parametrize("engine", ["in-process", "ray"])
def test_twenty_runs_under_load_leave_the_same(
    engine: str, make_run: Make, ray_cluster: None
) -> None:
    after = attacked(make_run, TEXT, "end", attack_stage={"when": "end"})
    changes = {"federation": {"engine": engine}, "attack_stage": {"when": "round"}}
    with busy(2):
        for number in range(20):
            assert attacked(make_run, TEXT, f"round-{number}", **changes) == after


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
