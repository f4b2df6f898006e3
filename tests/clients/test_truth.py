"""The truth of what is captured is kept, and of nothing else."""

from typing import Any

import pytest

from fedsim.capture import CaptureKey
from fedsim.participation import cohorts
from tests.apps.cases import IMAGES, Make, simulate

SIX = {"clients": 6, "rounds": 3}
COHORTS = {**SIX, "secure_aggregation": 3}


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
    captured = [cell.truth.members(key) for key in cell.captures.keys()]
    assert {str(one.key) for members in captured for one in members} == names
