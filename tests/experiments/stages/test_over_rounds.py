"""An attack over rounds through all stages: what it knows, and what each round's row uses."""

from typing import Any

import pyarrow.parquet as pq
import pytest
import torch

from attacks.observed.same_rows import ALONE
from experiments.pipeline import execute
from experiments.plan.folder import Run, RunStage
from fedsim.records import JobRecord
from fedsim.store.capture import CaptureKey, CaptureStore
from fedsim.store.files import load_tensors, read_record
from tests.apps.cases import IMAGES, Make

STAGES: tuple[RunStage, ...] = ("simulate", "attack", "score")
OVER = {"name": "inverting", "steps": 3, "over_rounds": True}


def attacked(make_run: Make, folder: str, rounds: int, **federation: Any) -> Run:
    own = {"rounds": rounds, "clients": 2, "batch_size": 2, "client_rows": 0, **federation}
    task = {"split": "train[:4]", "image_size": 16}
    run = make_run(IMAGES, folder, task=task, federation=own, attacks=[OVER])
    execute(run, STAGES, quiet=True)
    return run


def guess(run: Run, round_: int, client: int) -> torch.Tensor:
    name = str(CaptureKey(round=round_, client=client))
    (path,) = run.cells[0].folder.glob(f"guesses/inverting*/{name}.safetensors")
    return load_tensors(path)["inputs"]


@pytest.fixture(autouse=True)
def _unguarded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Searches of three steps would mostly give way to the prior."""
    monkeypatch.setattr("attacks.images.image_matching.guarded", lambda found, *_: found)


def reasons(run: Run) -> list[str]:
    paths = sorted(run.cells[0].folder.glob("guesses/inverting*/*.json"))
    return [read_record(path, JobRecord).reason for path in paths]


def all_rows(run: Run) -> set[bool | None]:
    store = CaptureStore(run.cells[0].captures.root)
    return {store.record(key).knowledge.all_rows for key in store.keys()}


@pytest.mark.slow
def test_a_round_does_not_know_of_later_ones(make_run: Make) -> None:
    short, long = (attacked(make_run, f"run-{rounds}", rounds) for rounds in (1, 3))
    assert all_rows(long) == {True}
    assert reasons(long) == [""] * 6
    for client in (0, 1):
        assert torch.equal(guess(short, 1, client), guess(long, 1, client))
        assert not torch.equal(guess(long, 1, client), guess(long, 2, client))
    rows = pq.read_table(long.root / "scores.parquet").to_pylist()
    scored = {(row["round"], row["client"]) for row in rows if row["attack"] == "inverting"}
    assert scored == {(round_, client) for round_ in (1, 2, 3) for client in (0, 1)}


def test_the_order_of_the_rows_does_not_matter(make_run: Make) -> None:
    run = attacked(make_run, "run", 2, protocol="fedavg", batch_size=1)
    assert all_rows(run) == {True}
    assert reasons(run) == [""] * 4


def test_clients_that_draw_rows_are_attacked_round_by_round(make_run: Make) -> None:
    run = attacked(make_run, "run", 2, protocol="fedsgd", batch_size=1)
    assert all_rows(run) == {False}
    assert reasons(run) == [ALONE] * 4
