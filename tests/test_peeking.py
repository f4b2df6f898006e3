"""Attacks on a small cell of images and one of texts: they guess, repeat, and cannot peek."""

import dataclasses
import shutil
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import TypeAlias

import pytest
import torch

import attacks
from attacks import ATTACKS
from attacks.base import Attack, Job, Reconstruction
from attacks.images.victims import NOTE, SMOOTHED
from attacks.scheduling.jobs import JobSpec
from attacks.scheduling.worker import run_job
from fedsim.records import JobRecord
from fedsim.store.capture import CaptureStore, Observation
from fedsim.store.files import load_tensors
from fedsim.store.truth import TruthStore
from fedsim.tasks.base import Task
from fedsim.types import Batch
from tests.contract_cases import ATTACK_CASES, RUNS, Cell, jobs


def guess(specs: Sequence[JobSpec]) -> tuple[list[JobRecord], dict[str, bytes]]:
    """The records of all jobs, and the bytes of each guess."""
    records = [record for spec in specs for record in run_job(spec)]
    paths = [spec.guess_path(key) for spec in specs for key in spec.keys]
    return records, {path.name: path.read_bytes() for path in paths if path.exists()}


Undisturbed: TypeAlias = Callable[
    [str, Cell], tuple[list[JobSpec], list[JobRecord], dict[str, bytes]]
]


@pytest.fixture(scope="module")
def undisturbed(cells: dict[Cell, Path], tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    """``undisturbed("dlg", "image")``: an attack's jobs, records and guesses, made once."""

    @cache
    def of(name: str, kind: Cell) -> tuple[list[JobSpec], list[JobRecord], dict[str, bytes]]:
        specs = jobs(cells[kind], name, tmp_path_factory.mktemp("cell") / "guesses")
        return specs, *guess(specs)

    return of


PAIRS = sorted(
    {(name, kind) for name, attack in ATTACKS.items() for kind in ("image", "text", "language")}
    | {*RUNS}
)


@pytest.mark.some(6)
@pytest.mark.parametrize(("name", "kind"), PAIRS)
def test_an_attack_guesses_or_says_why_not(
    name: str, kind: Cell, cells: dict[Cell, Path], undisturbed: Undisturbed
) -> None:
    cell, modality = cells[kind], "text" if kind in {"text", "language"} else "image"
    specs, records, guesses = undisturbed(name, kind)
    assert [record.key for record in records] == CaptureStore(cell / "captures").keys()
    if kind not in ATTACK_CASES[name].cells:
        assert {record.status for record in records} == {"skipped"}
        if modality not in ATTACKS[name].modalities:
            assert all(f"this task is {modality}" in record.reason for record in records)
        assert all(record.reason.endswith(".") for record in records)
        assert all(record.reason.startswith(f"{name}: ") for record in records)
        assert guesses == {}
        return
    assert [record.status for record in records] == ["done"] * 2
    assert {record.reason for record in records} <= {"", NOTE, SMOOTHED}
    for spec in specs:
        for key in spec.keys:
            tensors = load_tensors(spec.guess_path(key))
            truth = TruthStore(cell / "truth").load(key)
            assert len(tensors["inputs"]) == len(tensors["labels"]) == len(truth)
            assert all(bool(tensor.isfinite().all()) for tensor in tensors.values())
            assert ("mask" in tensors) == (modality == "text")
            if modality == "image":
                assert tensors["inputs"].shape == truth.inputs.shape
                # What is solved for is not cut to the range of pixels, and carries rounding.
                low, high = float(tensors["inputs"].min()), float(tensors["inputs"].max())
                assert -1e-4 <= low <= high <= 1 + 1e-4


@pytest.mark.some(2)
@pytest.mark.parametrize(("name", "kind"), RUNS)
def test_an_attack_does_not_see_the_truth_and_depends_on_its_seed(
    name: str, kind: Cell, cells: dict[Cell, Path], undisturbed: Undisturbed, tmp_path: Path
) -> None:
    cell = tmp_path / "run" / cells[kind].name
    shutil.copytree(cells[kind], cell)
    *_, before = undisturbed(name, kind)
    _, otherwise = guess(jobs(cell, name, tmp_path / "b" / "guesses", seed=1))
    assert before
    change_the_truth(cell)
    _, after = guess(jobs(cell, name, tmp_path / "c" / "guesses"))
    assert after == before
    assert (otherwise != before) == ATTACK_CASES[name].draws


def change_the_truth(cell: Path) -> None:
    """Other private pixels, tokens and labels in files that are as whole as before."""
    store = TruthStore(cell / "truth")
    for key in CaptureStore(cell / "captures").keys():
        batch, record = store.load(key), store.record(key)
        if batch.mask is None:
            inputs = 1 - batch.inputs
        else:
            inputs = torch.where(batch.mask == 1, 200 + batch.inputs // 2, batch.inputs)
        changed = Batch(inputs, (batch.labels + 1) % 2, batch.mask)
        store.save(key, changed, tuple(row + 1 for row in record.rows), record.steps)
        assert not torch.equal(store.load(key).inputs, batch.inputs)


@dataclasses.dataclass(frozen=True)
class Peeker(Attack):
    """Guesses the truth, wherever it got the path from."""

    folder: str = ""

    def guess(
        self, observation: Observation, task: Task, rng: torch.Generator, job: Job
    ) -> Reconstruction:
        return Reconstruction(TruthStore(Path(self.folder)).load(observation.key))


def test_an_attack_that_peeks_would_be_found(
    cells: dict[Cell, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(attacks.ATTACKS, "peeker", Peeker)
    cell = tmp_path / "run" / "cell"
    shutil.copytree(cells["image"], cell)
    folder = str(cell / "truth")
    _, before = guess(jobs(cell, "peeker", tmp_path / "a" / "guesses", folder=folder))
    change_the_truth(cell)
    _, after = guess(jobs(cell, "peeker", tmp_path / "b" / "guesses", folder=folder))
    assert before != after
