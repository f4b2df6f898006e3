"""``benchmarks gpu`` without one: its parts on the CPU, and a device that computes otherwise."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from attacks import attack_classes
from attacks.base import Reconstruction
from attacks.scheduling.jobs import JobSpec
from attacks.scheduling.worker import run_job
from attacks.texts.lamp import LAMP
from benchmarks import bench_gpu
from benchmarks.bench import BENCHES, bench
from benchmarks.bench_gpu import ATTACKS, BERT_BASE, each_attack, together
from fedsim.config.build import build
from fedsim.errors import ConfigError
from fedsim.records import JobRecord
from fedsim.store.capture import Observation
from fedsim.store.files import load_tensors, save_tensors


def test_every_attack_that_guesses_rows_is_measured() -> None:
    known = attack_classes()
    tables = [table for tables in ATTACKS.values() for table in tables]
    assert all(build(known, table, "attack") for table in tables)
    expected = {name for name, attack in known.items() if attack.infers == "rows"}
    expected -= {"prior_only", "disaggregate"}  # the last takes sums over rounds
    assert {table["name"] for table in tables} == expected


def test_another_guess_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    attacks = {"BERT": [{"name": "embedding_rows"}]}
    (same,) = each_attack(tmp_path / "same", attacks)
    assert (same.difference, same.device, same.ended) == (0.0, "cpu", "")
    assert min(same.cpu, same.gpu, same.peak_bytes) > 0
    inner = run_job

    def wrong(spec: JobSpec) -> list[JobRecord]:
        records = inner(spec)
        if spec.demand.gpus:
            path = spec.guess_path(spec.keys[0])
            tensors = load_tensors(path)
            save_tensors(path, {**tensors, "inputs": tensors["inputs"] + 1})
        return records

    monkeypatch.setattr(bench_gpu, "run_job", wrong)
    (other,) = each_attack(tmp_path / "other", attacks)
    assert other.difference == 1.0
    assert "difference 1.0e+00" in other.text()


@pytest.mark.parametrize("fit", [3, 1])
def test_victims_in_one_pass_or_not(fit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    small = {**BERT_BASE, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    small["intermediate_size"] = 16
    inner = LAMP.reconstruct

    def lacking(self: LAMP, group: Sequence[Observation], *given: Any) -> list[Reconstruction]:
        if len(group) > fit:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return inner(self, group, *given)

    monkeypatch.setattr(LAMP, "reconstruct", lacking)
    step, missed = together(torch.device("cpu"), small, (3,), 1)
    assert (step.name, step.unit) == ("LAMP, 1 x 16, 3 victims: a step of each", "ms")
    assert step.value > 0
    assert (missed.name, missed.value) == (
        "LAMP, 1 x 16, 3 victims: not in one pass",
        0 if fit == 3 else 3,
    )


def test_without_a_gpu_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(
        ConfigError, match=r"torch finds no GPU, so nothing was measured\. Run it where"
    ):
        next(bench("gpu"))
    assert list(BENCHES["gpu"](Path(), ())) == []
