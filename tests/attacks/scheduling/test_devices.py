"""What a job does on a GPU, without one: precision, memory, a lost context, the device's name."""

import os
import weakref
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import pytest
import torch
from torch import nn

from attacks.base import Attack, Job
from attacks.scheduling.isolation import run_serial
from attacks.scheduling.jobs import Demand, JobSpec, settled
from attacks.scheduling.ledger import Ledger
from attacks.scheduling.worker import GpuLost, run_job
from experiments.console import Console
from experiments.stages.attack import Attackers
from fedsim.process import device_for, float32

Jobs = Callable[..., list[JobSpec]]
GPU = Demand(gpus=0.5)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that takes the CPU for a GPU: the fakes compute nothing on it."""
    cuda = torch.device("cuda")
    monkeypatch.setattr("attacks.scheduling.worker.device_for", lambda gpus: cuda)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "A Great GPU")
    for name in ("reset_peak_memory_stats", "max_memory_allocated"):
        monkeypatch.setattr(torch.cuda, name, lambda device: 7)


@pytest.mark.some(4)
@pytest.mark.parametrize("act", ["draw", "raise", "cannot"])
def test_nothing_of_a_job_is_left_on_the_gpu(
    act: str, jobs: Jobs, gpu: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = import_module("fake_attacks").Fake
    models: list[weakref.ref[nn.Module]] = []
    alive: list[bool] = []
    misbehave = fake._misbehave

    def hold(self: Attack, first: bool, job: Job) -> None:
        model = nn.Linear(2, 2)
        model.register_forward_hook(lambda *_: model)  # a cycle, as attacks make
        models.append(weakref.ref(model))
        misbehave(self, first, job)

    monkeypatch.setattr(fake, "_misbehave", hold)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: alive.append(models[0]() is not None))
    run_job(jobs(act=act, demand=GPU)[0])
    assert alive == [False]


def test_a_record_names_the_device(jobs: Jobs, gpu: None) -> None:
    (record,) = run_job(jobs(demand=GPU)[0])
    assert (record.device, record.peak_bytes) == ("A Great GPU", 7)


def test_who_asked_for_a_gpu_and_got_none_is_told(jobs: Jobs, tmp_path: Path) -> None:
    with Ledger(tmp_path / "jobs.sqlite") as ledger:
        team = Attackers(ledger, Console(quiet=True))
        run_serial(jobs(demand=GPU)[:2], ledger, team._show)
        assert (team.without_gpu, team.devices) == (2, {"cpu"})
        run_serial(jobs("fake_weights")[:1], ledger, team._show)
        assert team.without_gpu == 2
    assert device_for(0.5).type == "cpu"


def test_an_assert_on_the_gpu_ends_the_process_and_no_resume(
    jobs: Jobs, tmp_path: Path, gpu: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That of a built-in attack; those of others have processes of their own."""
    monkeypatch.setattr("attacks.scheduling.isolation.is_foreign", lambda _: False)
    specs = jobs(act="assert", since=1, demand=GPU)[:3]
    with Ledger(tmp_path / "jobs.sqlite") as ledger:
        for number in (1, 2):
            with pytest.raises(GpuLost, match=r"the GPU stopped \(CUDA error: device-side"):
                run_serial(specs, ledger)
            assert [settled(spec) is not None for spec in specs].count(True) == number + 1
        records = run_serial(specs, ledger)
    assert [record.status for record in records] == ["done", "failed", "failed"]
    assert records[1].reason.startswith("AcceleratorError: CUDA error: device-side assert")


@pytest.mark.parametrize("tf32", [False, True])
def test_products_are_as_exact_as_asked(
    tf32: bool, jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[bool, bool]] = []

    def note(*_: object) -> None:
        flags = torch.backends.cuda.matmul, torch.backends.cudnn
        seen.append((flags[0].allow_tf32, flags[1].allow_tf32))

    monkeypatch.setattr("fake_attacks.Fake._misbehave", note)
    with float32(tf32=not tf32):
        run_job(jobs(demand=Demand(tf32=tf32))[0])
        note()
    assert seen == [(tf32, tf32), (not tf32, not tf32)]


@pytest.mark.parametrize("available", [False, True])
def test_sums_on_a_gpu_are_taken_in_one_order(
    available: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: available)
    with float32(tf32=False):
        assert torch.are_deterministic_algorithms_enabled() == available
        assert torch.is_deterministic_algorithms_warn_only_enabled() == available
    assert not torch.are_deterministic_algorithms_enabled()
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
