"""The truth of what is captured is kept, and of nothing else."""

from pathlib import Path
from typing import Any

import pytest
import torch

from fedsim.participation import cohorts
from fedsim.store.capture import CaptureKey
from fedsim.store.truth import TruthStore
from fedsim.types import Batch
from tests.apps.cases import IMAGES, Make, simulate

SIX = {"clients": 6, "rounds": 3}
COHORTS = {**SIX, "secure_aggregation": 3}


@pytest.mark.some(3)
@pytest.mark.parametrize(
    ("changes", "kept"),
    [
        ({"federation": SIX}, {(r, c) for r in (1, 2, 3) for c in range(6)}),
        (
            {"federation": SIX, "capture": {"rounds": [3], "clients": [1, 4]}},
            {(3, 1), (3, 4)},
        ),
        (
            {
                "federation": SIX,
                "capture": {"rounds": [1, 3], "clients": [4]},
                "probes": {"member": 1, "fresh": 1},
            },
            {(r, c) for r in (1, 3) for c in (4, 6, 7)},
        ),
        (
            {"federation": COHORTS, "capture": {"rounds": [2], "clients": [1]}},
            {(2, c) for c in cohorts(0, 2, range(6), 3)[1]},
        ),
    ],
    ids=["everything", "clients", "probes", "cohorts"],
)
def test_the_truth_of_what_is_captured_is_kept_alone(
    changes: dict[str, Any], kept: set[tuple[int, int]], make_run: Make
) -> None:
    run = make_run(IMAGES, **changes)
    simulate(run)
    (cell,) = run.cells
    written = {path.name for path in (cell.folder / "truth").iterdir()}
    names = {str(CaptureKey(round=r, client=c)) for r, c in kept}
    assert written == {f"{name}.{end}" for name in names for end in ("json", "safetensors")}
    captured = {key: cell.truth.members(key) for key in cell.captures.keys()}
    assert {str(member.key) for members in captured.values() for member in members} == names
    assert cell.truth.by_capture() == captured
    assert sorted(str(client.key) for client in cell.truth.clients()) == sorted(names)


def test_a_client_is_looked_up_without_listing_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, key = TruthStore(tmp_path), CaptureKey(round=1, client=2)
    store.save(key, Batch(torch.zeros(1, 1, 2, 2), torch.zeros(1).long()), (7,), ((0,),))
    monkeypatch.setattr(Path, "glob", None)
    assert [record.rows for record in store.members(key)] == [(7,)]
