"""What ``fedsim show`` says of the memory that an attack job needs."""

from pathlib import Path

import pytest

from experiments.plan.cells import make_cells
from experiments.plan.config import Plan, parse_experiment
from experiments.plan.rehearsal import rehearse
from experiments.preview.show import heaviest_job
from tests.apps.cases import IMAGES, merge


@pytest.mark.parametrize(
    ("attack", "group_size", "updates"),
    [
        ({"name": "inverting"}, 16, 3),
        ({"name": "inverting"}, 2, 2),
        ({"name": "inverting", "over_rounds": True}, 16, 2),
        ({"name": "closed_form"}, 16, 1),
    ],
)
def test_updates_that_a_job_holds(attack: dict[str, object], group_size: int, updates: int) -> None:
    changes = {
        "attacks": [{"name": "prior_only"}, attack],
        "attack_stage": {"group_size": group_size},
        "federation": {"rounds": 2, "clients": 3},
    }
    experiment = parse_experiment(merge(IMAGES, changes))
    cells = make_cells(Plan(name="x", experiments=(experiment,)), Path("runs/x"))
    starts = rehearse(cells)
    label, count, held = heaviest_job(cells, starts)
    assert count == updates
    assert held == updates * starts[cells[0].name].reply_bytes
    assert label.startswith(str(attack["name"])) or updates == 1
