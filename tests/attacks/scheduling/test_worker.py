"""What the machine does to a job is no result of the attack: the job is run again."""

import errno
import re
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch

from attacks.base import Attack, Reconstruction
from attacks.scheduling.isolation import run_serial
from attacks.scheduling.jobs import JobSpec, settled
from attacks.scheduling.ledger import Ledger
from attacks.scheduling.worker import HALVED, run_job
from fedsim.errors import StoreError, Terminated
from fedsim.records import JobRecord
from fedsim.store.capture import Observation

Jobs = Callable[..., list[JobSpec]]


@pytest.fixture
def serial(tmp_path: Path) -> Callable[[list[JobSpec]], tuple[list[JobRecord], list[str]]]:
    """Run the jobs as a command does; returns their records and the states in the ledger."""

    def run(specs: list[JobSpec]) -> tuple[list[JobRecord], list[str]]:
        with Ledger(tmp_path / "run" / "jobs.sqlite") as ledger:
            return run_serial(specs, ledger), [row.state for row in ledger.rows()]

    return run


Serial = Callable[[list[JobSpec]], tuple[list[JobRecord], list[str]]]


@pytest.mark.slow
def test_a_missing_model_settles_nothing(jobs: Jobs, captures: Path, serial: Serial) -> None:
    models = captures / "models"
    models.rename(captures / "away")
    records, states = serial(jobs())
    assert {record.status for record in records} == {"interrupted"}
    assert all(record.reason.startswith(f"StoreError: {models}") for record in records)
    assert states == ["queued"] * 6
    (captures / "away").rename(models)
    records, states = serial(jobs())
    assert {record.status for record in records} == {"done"}
    assert states == ["done"] * 6


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes."),
    ],
    ids=["disk", "memory", "cuda", "allocator"],
)
def test_the_machine_fails_and_not_the_attack(
    error: Exception, jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr("fake_attacks.Fake.reconstruct", fail)
    spec = jobs()[0]
    (record,) = run_job(spec)
    assert record.status == "interrupted"
    assert settled(spec) is None


@pytest.mark.parametrize("error", [KeyboardInterrupt(), Terminated(143)])
def test_the_user_ends_the_command_and_not_the_attack(
    error: BaseException, jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr("fake_attacks.Fake.reconstruct", fail)
    spec = jobs()[0]
    with pytest.raises(type(error)):
        run_job(spec)
    assert settled(spec) is None


def test_a_group_that_the_memory_does_not_hold_is_halved(
    jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    (together, _), (halved, _) = jobs("fake_weights"), jobs("fake_weights", cell="halved")
    expected = run_job(together)
    inner = import_module("fake_attacks").Fake.reconstruct
    sizes: list[int] = []

    def small(self: Attack, group: Sequence[Observation], *given: Any) -> list[Reconstruction]:
        sizes.append(len(group))
        if len(group) > 1 or group[0].key.client == 2:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        made: list[Reconstruction] = inner(self, group, *given)
        return made

    monkeypatch.setattr("fake_attacks.Fake.reconstruct", small)
    records = run_job(halved)
    assert sizes == [3, 1, 2, 1, 1]
    assert [r.status for r in records] == ["done", "done", "interrupted"]
    assert [r.reason for r in records[:2]] == [HALVED, HALVED]
    assert [r.objective for r in records[:2]] == [r.objective for r in expected[:2]]


@pytest.mark.slow
def test_a_full_disk_is_named_and_costs_nothing(
    jobs: Jobs, serial: Serial, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, *others = jobs()
    serial([first])

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("fedsim.store.files.os.replace", full)
        patch.setattr("attacks.scheduling.isolation.is_foreign", lambda _: False)
        guess = others[0].guess_path(others[0].keys[0])
        said = f"{guess}: cannot be written (No space left on device). What was finished is kept"
        with pytest.raises(StoreError, match=f"^{re.escape(said)}"):
            serial([first, *others])
    assert [path.name for path in guess.parent.iterdir() if path.suffix == ".tmp"] == []
    records, states = serial([first, *others])
    assert states == ["done"] * 6
    assert [record.attempts for record in records] == [1, 2, 1, 1, 1, 1]


def test_swapped_records_of_jobs_are_made_again(jobs: Jobs) -> None:
    first, second = jobs()[:2]
    run_job(first)
    run_job(second)
    swapped = first.record_path(first.keys[0])
    swapped.write_bytes(second.record_path(second.keys[0]).read_bytes())
    assert settled(first) is None
