"""What ``fedsim show --all`` says of memory, and of options that have no effect."""

from pathlib import Path
from typing import Any

import pytest

from experiments.plan.cells import make_cells
from experiments.plan.config import Plan, parse_experiment
from experiments.plan.rehearsal import rehearse
from experiments.preview.show import describe, heaviest_job
from tests.apps.cases import IMAGES, TEXT, Make, merge


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


@pytest.mark.parametrize(
    ("base", "model", "train", "told"),
    [
        (IMAGES, "lenet", True, True),
        (IMAGES, "mlp", True, True),
        (IMAGES, "lenet", False, False),
        (IMAGES, "resnet20", True, False),  # batch statistics
        (TEXT, "tiny-bert", True, False),  # dropout
    ],
)
def test_show_says_where_train_mode_changes_nothing(
    base: dict[str, Any], model: str, train: bool, told: bool, make_run: Make
) -> None:
    run = make_run(base, task={"model": model}, federation={"train_mode": train}, attacks=[])
    description = describe(run.plan)
    assert description.parts[0].modeless == ((model,) if told else ())
    line = f"train mode has no effect on {model}, which has neither dropout nor batch statistics"
    assert (line in description.text()) == told


@pytest.mark.parametrize(
    ("base", "federation", "attack", "told"),
    [
        (IMAGES, {"optimizer": "adam"}, "inverting", 'federation.optimizer = "adam" has no effect'),
        (IMAGES, {"local_steps": 4}, "inverting", "federation.local_steps = 4 has no effect"),
        (IMAGES, {"protocol": "fedavg", "optimizer": "adam"}, "inverting", ""),
        (IMAGES, {}, "span", "span reconstructs text, and is skipped on this task, which is image"),
        (TEXT, {}, "dlg", "dlg reconstructs image, and is skipped on this task, which is text"),
        (TEXT, {}, "prior_only", ""),
    ],
)
def test_show_says_what_has_no_effect(
    base: dict[str, Any], federation: dict[str, Any], attack: str, told: str, make_run: Make
) -> None:
    run = make_run(base, federation=federation, attacks=[{"name": attack}])
    description = describe(run.plan)
    said = description.parts[0].idle
    assert len(said) == bool(told)
    assert all(line.startswith(told) and line in description.text() for line in said)
