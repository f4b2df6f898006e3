"""What is said to be feasible, against what the attacks themselves then say."""

from typing import Any

import pytest

from attacks import ATTACKS
from attacks.base import Attack
from attacks.feasibility import Feasibility, Prospect
from attacks.tokens.attacked_model import AttackedModel
from attacks.tokens.exact_traces import read_traces
from attacks.tokens.span_membership import best_test
from experiments.plan.cells import Cell
from experiments.plan.rehearsal import rehearse
from experiments.preview.feasibility import feasible, replies
from experiments.wording.names import own_titles, title
from fedsim.errors import CannotAttack
from fedsim.tasks import load_task
from fedsim.tasks.text import TextTask
from tests.apps.cases import IMAGES, TEXT, Make, simulate

MLP = {**IMAGES, "task": {"model": "mlp", "dataset": "shapes", "heldout_rows": 8}}


def told(cell: Cell) -> dict[str, Feasibility]:
    start = rehearse([cell])[cell.name]
    return feasible(cell.config, start.setting.task, start.setting.holdings.private, start.weights)


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
    options = {"clients": 4, "rounds": 1}
    alone = make_run(TEXT, federation=options, folder="alone")
    run = make_run(TEXT, federation={**options, "secure_aggregation": 4})
    single, summed = (told(each.cells[0])["embedding_rows"].counts for each in (alone, run))
    assert len(single) == 4
    assert summed == (sum(single),)


@pytest.mark.some(3)
@pytest.mark.parametrize(
    ("base", "changes", "colours"),
    [
        (TEXT, {}, {"span": "green", "embedding_rows": "green"}),
        (
            TEXT,
            {"federation": {"batch_size": 2}},
            {"span": "green", "embedding_rows": "amber"},
        ),
        (
            TEXT,
            {"defenses": [{"name": "freeze_embeddings", "word": True}]},
            {"span": "green", "embedding_rows": "red"},
        ),
        (
            TEXT,
            {"defenses": [{"name": "gaussian_noise", "std": 0.01}]},
            {"span": "amber", "embedding_rows": "amber"},
        ),
        (
            TEXT,
            {"federation": {"train_mode": True}},
            {"span": "amber", "embedding_rows": "green"},
        ),
        *(
            (
                TEXT,
                {"federation": {"protocol": "fedavg", "optimizer": name, "client_rows": 1}},
                {"span": "amber", "embedding_rows": "amber"},
            )
            for name in ("adam", "adafactor")
        ),
        (
            TEXT,
            {
                "task": {**TEXT["task"], "lora_rank": 2},
                "federation": {"protocol": "fedavg", "optimizer": "adam", "client_rows": 1},
            },
            {"span": "red"},
        ),
        (
            TEXT,
            {
                "task": {**TEXT["task"], "lora_rank": 16},
                "federation": {"protocol": "fedavg", "optimizer": "adam", "client_rows": 1},
            },
            {"span": "amber"},
        ),
        (IMAGES, {}, {"spear": "red", "closed_form": "green"}),
        (MLP, {"federation": {"batch_size": 3}}, {"spear": "green", "closed_form": "red"}),
        (MLP, {"federation": {"batch_size": 24, "clients": 1}}, {"spear": "green"}),
        (MLP, {"federation": {"batch_size": 48, "clients": 1}}, {"spear": "amber"}),
    ],
)
def test_colours(
    base: dict[str, Any], changes: dict[str, Any], colours: dict[str, str], make_run: Make
) -> None:
    found = told(make_run(base, **changes).cells[0])
    assert {name: found[name].colour for name in colours} == colours


def test_more_words_than_the_width_leave_no_room_for_a_proof(make_run: Make) -> None:
    """tiny-bert is 128 wide: six sentences fit, a dozen do not; and the attack says the same."""
    for size, colour in ((4, "green"), (12, "amber")):
        run = make_run(
            TEXT,
            folder=f"run{size}",
            federation={"batch_size": size, "clients": 1, "rounds": 1, "client_rows": 0},
            attacks=[{"name": "span"}],
        )
        simulate(run)
        cell = run.cells[0]
        found = told(cell)["span"]
        assert found.colour == colour, found.text("span")
        seen = cell.captures.load(cell.captures.keys()[0])
        task = load_task(cell.captures.root)
        assert isinstance(task, TextTask)
        model = AttackedModel.of(seen, task)
        try:
            traces = read_traces(model)
            best_test(model, traces.before)
            refused = False
        except CannotAttack as error:
            refused = "rank" in str(error)
        assert refused == (colour == "amber")
        assert found.reason.endswith("; decoded, not proven") == refused


def test_a_line_has_the_number_that_decides() -> None:
    feasibility = Feasibility("amber", "tokens", (9, 4, 230), 125, "1 of 3 replies hold more")
    line = "span           amber  tokens 9 (4 to 230) of 125: 1 of 3 replies hold more"
    assert feasibility.text("span") == line


class Halves(Attack):
    """An attack of somebody else that takes at most one example."""

    title = "Halves"

    def feasible(self, prospect: Prospect) -> Feasibility:
        """Examples against one."""
        return prospect.judge("examples", prospect.examples, 1)


def test_an_attack_of_a_package_is_asked_too(
    make_run: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ATTACKS, "halves", Halves)
    own_titles.cache_clear()
    found = told(make_run(TEXT, federation={"batch_size": 2}).cells[0])
    assert found["halves"].text("halves").startswith("halves         red    examples 2 of 1")
    assert (title("halves"), title("prior_only")) == ("Halves", "prior only")
    assert "lamp" not in found
    assert "spear" not in found
    own_titles.cache_clear()
