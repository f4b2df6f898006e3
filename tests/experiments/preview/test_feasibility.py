"""Traffic lights against what the attacks themselves then say."""

from typing import Any

import pytest

from attacks import ATTACKS
from attacks.base import Job
from experiments.plan.cells import Cell
from experiments.plan.rehearsal import rehearse
from experiments.preview.feasibility import Light
from experiments.preview.rank_light import lights
from experiments.preview.replies import replies
from fedsim.errors import CannotAttack
from fedsim.seeds import generator
from fedsim.tasks import load_task
from tests.apps.cases import IMAGES, TEXT, Make, simulate

MLP = {**IMAGES, "task": {"model": "mlp", "dataset": "shapes", "heldout_rows": 8}}


def lit(cell: Cell) -> dict[str, Light]:
    start = rehearse([cell])[cell.name]
    found = lights(cell.config, start.setting.task, start.setting.holdings.private, start.weights)
    return {light.attack: light for light in found}


def test_replies_are_those_that_are_captured(make_run: Make) -> None:
    run = make_run(
        TEXT,
        federation={"clients": 4, "participation": 0.5, "protocol": "fedavg", "local_epochs": 2},
        capture={"rounds": [2]},
    )
    simulate(run)
    cell = run.cells[0]
    labels = rehearse([cell])[cell.name].setting.holdings.private.labels
    found = list(replies(cell.config, labels))
    records = [cell.truth.record(key) for key in cell.captures.keys()]
    assert len(found) == len(records) == 2
    assert [reply.steps for reply in found] == [len(record.steps) for record in records] == [4, 4]
    assert [len(reply.rows) for reply in found] == [2, 2]


def test_secure_aggregation_counts_the_cohort(make_run: Make) -> None:
    run = make_run(TEXT, federation={"clients": 4, "rounds": 1, "secure_aggregation": 4})
    assert lit(run.cells[0])["april"].counts == (4,)


@pytest.mark.parametrize(
    ("base", "changes", "colours"),
    [
        (TEXT, {}, {"span": "green", "embedding_rows": "green", "april": "green"}),
        (
            TEXT,
            {"federation": {"batch_size": 2}},
            {"span": "green", "embedding_rows": "amber", "april": "red"},
        ),
        (
            TEXT,
            {"defenses": [{"name": "freeze_embeddings", "word": True}]},
            {"span": "green", "embedding_rows": "red", "april": "green"},
        ),
        (
            TEXT,
            {"defenses": [{"name": "gaussian_noise", "std": 0.01}]},
            {"span": "amber", "embedding_rows": "amber", "april": "amber"},
        ),
        (
            TEXT,
            {"federation": {"train_mode": True}},
            {"span": "amber", "embedding_rows": "green", "april": "amber"},
        ),
        (
            TEXT,
            {"federation": {"protocol": "fedavg", "optimizer": "adam", "client_rows": 1}},
            {"span": "red", "embedding_rows": "amber", "april": "amber"},
        ),
        (IMAGES, {}, {"spear": "red", "ratio": "red", "closed_form": "green"}),
        (MLP, {"federation": {"batch_size": 3}}, {"spear": "green", "closed_form": "red"}),
        (MLP, {"federation": {"batch_size": 24, "clients": 1}}, {"spear": "amber"}),
    ],
)
def test_colours(
    base: dict[str, Any], changes: dict[str, Any], colours: dict[str, str], make_run: Make
) -> None:
    found = lit(make_run(base, **changes).cells[0])
    assert {name: found[name].colour for name in colours} == colours


def test_more_words_than_the_width_leave_no_room(make_run: Make) -> None:
    """tiny-bert is 128 wide: six sentences fit, a dozen do not; and the attack says the same."""
    for size, colour in ((4, "green"), (12, "red")):
        run = make_run(
            TEXT,
            folder=f"run{size}",
            federation={"batch_size": size, "clients": 1, "rounds": 1, "client_rows": 0},
            attacks=[{"name": "span"}],
        )
        simulate(run)
        cell = run.cells[0]
        light = lit(cell)["span"]
        assert light.colour == colour, light.text()
        seen = cell.captures.load(cell.captures.keys()[0])
        job = Job(deadline=0.0)
        try:
            task = load_task(cell.captures.root)
            ATTACKS["span"]().reconstruct([seen], task, [generator(0, "span")], job)
            refused = False
        except CannotAttack as error:
            refused = "rank" in str(error)
        assert refused == (colour == "red")


def test_a_line_has_the_number_that_decides() -> None:
    light = Light("span", "amber", "tokens", (9, 4, 230), 125, "1 of 3 replies hold more")
    line = "span           amber  tokens 9 (4 to 230) of 125: 1 of 3 replies hold more"
    assert light.text() == line
