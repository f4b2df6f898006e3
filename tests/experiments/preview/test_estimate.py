"""How long attacks without a schedule are said to take, before anything is run."""

import time
from typing import Any

import pytest

from attacks import ATTACKS
from experiments.preview.estimate import CostEstimate
from experiments.preview.show import ExperimentDescription, describe
from tests.apps.cases import IMAGES, TEXT, Make

pytestmark = pytest.mark.usefixtures("fakes")
NOISE = {"name": "gaussian_noise", "std": 0.1}


def shown(make_run: Make, *attacks: dict[str, Any], **changes: object) -> ExperimentDescription:
    return describe(make_run(IMAGES, attacks=list(attacks), **changes).plan)


def time_of(make_run: Make, *attacks: dict[str, Any], **changes: object) -> CostEstimate:
    return shown(make_run, *attacks, **changes).parts[0].cost.time


def test_a_quick_attack_is_tried_and_multiplied(make_run: Make) -> None:
    description = describe(make_run(TEXT).plan)  # embedding_rows: milliseconds, and no schedule
    cost = description.parts[0].cost
    (took,) = cost.time.tries.values()
    assert 0 < took < 30
    assert cost.time.quick == pytest.approx(cost.captures * took)  # one process, one worker
    assert (cost.time.budgeted, cost.time.steps) == (0, {})
    assert "quick attacks: about" in description.text()
    assert "time budget" not in description.text().split("# cost")[1]


@pytest.mark.parametrize(("cores", "share"), [(1, 1), (2, 2), (8, 2)])
def test_workers_share_the_cores_that_there_are(
    cores: int, share: int, make_run: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: cores)
    run = make_run(TEXT, federation={"engine": "ray"}, attack_stage={"workers": 2})
    cost = describe(run.plan).parts[0].cost
    (took,) = cost.time.tries.values()
    assert cost.time.quick == pytest.approx(cost.captures * took / share)


def test_what_a_search_does_besides_its_steps_counts(
    make_run: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    search = ATTACKS["dlg"].reconstruct

    def slow(*given: Any) -> Any:
        time.sleep(0.2)  # as to learn the labels
        return search(*given)

    monkeypatch.setattr(ATTACKS["dlg"], "reconstruct", slow)
    attack = {"name": "dlg", "steps": 1}
    cost = shown(make_run, attack).parts[0].cost
    ((step, count),) = cost.time.steps.values()
    assert cost.time.attacks > cost.captures * (0.2 + step * count)


def test_the_time_of_a_try_is_its_own(make_run: Make) -> None:
    spent = time_of(make_run, {"name": "fake", "pause": 0.2}, {"name": "fake", "pause": 0.01})
    slow, fast = spent.tries.values()
    assert 0.2 < slow < 2
    assert fast < slow


@pytest.mark.parametrize(
    ("attack", "count", "most"),
    [
        ({"name": "fake", "act": "expire"}, 6, "10 min"),  # goes on until it is told to end
        ({"name": "fake_learner"}, 2, "3.3 min"),  # learns once for the clients of a round
        ({"name": "fake", "act": "raise"}, 6, "10 min"),
    ],
    ids=["told to end", "learns", "raises"],
)
def test_what_does_not_end_by_itself_stays_with_the_budget(
    attack: dict[str, Any], count: int, most: str, make_run: Make
) -> None:
    spent = time_of(make_run, attack, attack_stage={"time_budget": 100.0, "workers": 1})
    assert (spent.tries, spent.quick) == ({}, 0)
    assert (spent.budgeted, spent.budget) == (count, 100 * count)
    told = f"{count} captures or trainings, at most {most} by the time budget"
    assert f"other attacks ({attack['name']}" in spent.text()
    assert told in spent.text()


def test_what_cannot_attack_takes_no_time_unless_another_cell_lets_it(make_run: Make) -> None:
    attack = {"name": "fake", "act": "cannot"}
    alone = time_of(make_run, attack)
    assert (alone.tries, alone.budgeted) == ({}, 0)
    two = time_of(make_run, attack, folder="two", defenses=[{"name": "none"}, NOISE])
    assert (two.tries, two.budgeted) == ({}, 12)


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
