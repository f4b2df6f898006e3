"""Under secure aggregation the server gets sums, and nothing that a single client sent."""

from collections.abc import Iterable
from typing import Any, cast

import pytest
import torch
from flwr.app import ArrayRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid, ServerApp
from torch import Tensor

from experiments.checks.capture_check import TOLERANCE, examine
from experiments.plan.cells import Cell
from experiments.plan.config import parse_experiment
from experiments.plan.folder import Run
from experiments.stages.score import Scorer
from fedsim.api.victims import Victims
from fedsim.errors import ConfigError, SimulationError
from fedsim.knowledge import Knowledge
from fedsim.participation import cohorts, draw, mean
from fedsim.records import SimulationRecord
from fedsim.store.capture import CaptureKey, Observation
from fedsim.store.files import read_record
from fedsim.tasks import load_task
from fedsim.types import Batch, Tensors, joined
from fedsim.wire import arrays_of, to_tensors
from server.eavesdropper import Eavesdropper
from server.grids.in_process import InProcessGrid
from server.grids.local import run_server
from server.participation import Participation
from server.secure_aggregation import SecureAggregation
from tests.apps.cases import IMAGES, TEXT, Make, files_of, merge, simulate
from tests.apps.plain_app import start_arrays

SIX: dict[str, Any] = {"clients": 6, "batch_size": 2, "rounds": 2, "size_spread": 1.5}

FEW = merge(IMAGES, {"task": {"split": "train[:14]"}})
"""So few rows that some clients have fewer than a batch, hence other weights."""
AVERAGING: dict[str, Any] = SIX | {"protocol": "fedavg", "client_rows": 3, "local_epochs": 2}


def trained(make_run: Make, base: dict[str, Any], folder: str, **changes: Any) -> Run:
    run = make_run(base, folder=folder, **changes)
    simulate(run)
    return run


def seen(cell: Cell, round_: int = 1) -> list[Observation]:
    return [cell.captures.load(k) for k in cell.captures.keys() if k.round == round_]


def weighted(parts: list[Observation]) -> Tensors:
    counts = [cast(int, part.knowledge.num_examples) for part in parts]
    return {
        name: torch.stack(
            [n * part.received[name].double() for n, part in zip(counts, parts, strict=True)]
        ).sum(0)
        / sum(counts)
        for name in parts[0].received
    }


def split_of(cell: Cell, round_: int = 1) -> list[tuple[int, ...]]:
    config = cell.config
    drawn = draw(config.seed, round_, config.federation.clients, config.federation.participation)
    return cohorts(config.seed, round_, drawn, config.federation.cohort)


@pytest.mark.some(2)
@pytest.mark.parametrize("federation", [SIX, AVERAGING], ids=["fedsgd", "fedavg"])
def test_the_store_holds_the_sums_of_cohorts_and_no_single_update(
    federation: dict[str, Any], make_run: Make
) -> None:
    knows = {"labels": True}
    (open_,) = trained(make_run, FEW, "open", federation=federation, server_knows=knows).cells
    secret = {**federation, "secure_aggregation": 3}
    run = trained(make_run, FEW, "secret", federation=secret, server_knows=knows)
    (closed,) = run.cells
    single = seen(open_)
    sums = seen(closed)
    assert [(o.key.client, o.knowledge.cohort) for o in sums] == [(0, 3), (1, 3)]
    assert len({part.knowledge.num_examples for part in single}) > 1
    for observation, members in zip(sums, split_of(closed), strict=True):
        parts = [single[client] for client in members]
        expected = weighted(parts)
        for name, value in observation.received.items():
            assert torch.allclose(value.double(), expected[name], rtol=1e-6, atol=1e-8), name
            assert not any(parallel(value, part.received[name]) for part in single), name
        for name, value in observation.update().items():
            assert not any(parallel(value, part.update()[name]) for part in single), name
        known = [cast(tuple[int, ...], part.knowledge.labels) for part in parts]
        assert observation.knowledge.labels == tuple(sorted(sum(known, ())))
        assert observation.knowledge.num_examples == len(sum(known, ()))
        assert observation.knowledge.batch_size == 2
        truth = closed.truth.load(observation.key)
        apart = [open_.truth.load(part.key) for part in parts]
        assert torch.equal(truth.inputs, torch.cat([batch.inputs for batch in apart]))
        steps = closed.truth.record(observation.key).steps
        of_each = {part.knowledge.local_steps for part in parts}
        assert max(cast(set[int], of_each)) == len(steps)
        agreed = len(steps) if len(of_each) == 1 else None
        assert observation.knowledge.local_steps == agreed
        assert set(sum(steps, ())) == set(range(len(truth)))
    points = [read_record(c.folder / "simulation.json", SimulationRecord) for c in (open_, closed)]
    assert points[0].bytes_up == points[1].bytes_up
    for one, two in zip(points[0].utility, points[1].utility, strict=True):
        assert one.value == pytest.approx(two.value, rel=1e-5)
    final = [cell.captures.load(CaptureKey(round=2, client=0)).sent for cell in (open_, closed)]
    for name, value in final[0].items():
        assert torch.allclose(value, final[1][name], rtol=1e-5, atol=1e-7)
    checkup = examine(run)
    assert checkup.faults == 0
    assert max(finding.relative_error for finding in checkup.findings) < TOLERANCE


def parallel(one: Tensor, other: Tensor) -> bool:
    """Whether one is a multiple of the other, as the only number of a scalar always is."""
    one, other = one.flatten().double(), other.flatten().double()
    if one.numel() < 2 or not one.any() or not other.any():
        return False
    return bool((one @ other).abs() > (1 - 1e-9) * one.norm() * other.norm())


def test_a_sum_of_gradients_is_the_gradient_of_the_union(make_run: Make) -> None:
    (cell,) = trained(
        make_run, TEXT, "run", federation={**SIX, "rounds": 1, "secure_aggregation": 6},
        server_knows={"lengths": True},
    ).cells  # fmt: skip
    (observation,) = seen(cell)
    task, truth = load_task(cell.captures.root), cell.truth.load(observation.key)
    assert truth.mask is not None
    assert observation.knowledge.lengths == tuple(sorted(truth.mask.sum(1).tolist()))
    gradient = task.gradient(task.model(observation.sent), truth)
    for name, value in gradient.items():
        assert torch.allclose(value, observation.received[name], rtol=1e-3, atol=1e-6), name


@pytest.mark.slow
@pytest.mark.parametrize("federation", [SIX, AVERAGING], ids=["fedsgd", "fedavg"])
def test_a_cohort_of_one_is_no_secure_aggregation(
    federation: dict[str, Any], make_run: Make
) -> None:
    runs = [
        trained(make_run, IMAGES, f"{k}", federation={**federation, "secure_aggregation": k})
        for k in (0, 1)
    ]
    off, on = (files_of(run.cells[0].folder / "captures") for run in runs)
    assert off == on
    assert any(name.endswith(".safetensors") for name in off)


def test_the_eavesdropper_is_never_given_a_single_reply(
    make_run: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: dict[str, list[Tensors]] = {"eavesdropper": [], "participation": []}

    def spy(name: str, cls: Any) -> None:
        plain = cls.aggregate_train

        def aggregate_train(
            self: Any, server_round: int, replies: Iterable[Message]
        ) -> tuple[ArrayRecord | None, MetricRecord | None]:
            replies = list(replies)
            given[name] += [to_tensors(arrays_of(reply)) for reply in replies]
            result: tuple[ArrayRecord | None, MetricRecord | None]
            result = plain(self, server_round, replies)
            return result

        monkeypatch.setattr(cls, "aggregate_train", aggregate_train)

    spy("eavesdropper", Eavesdropper)
    spy("participation", Participation)
    options = {**SIX, "rounds": 1}
    trained(make_run, IMAGES, "open", federation=options)
    single = {name: list(replies) for name, replies in given.items()}
    for replies in given.values():
        replies.clear()
    trained(make_run, IMAGES, "closed", federation={**options, "secure_aggregation": 2})
    for name, sums in given.items():
        assert (len(single[name]), len(sums)) == (6, 3)
        assert not any(
            parallel(value, part[key]) for one in sums for key, value in one.items()
            for part in single[name]
        )  # fmt: skip


def test_no_way_around_the_sum_is_offered() -> None:
    grid = SecureAggregation(InProcessGrid("tests.apps.plain_app:app", 4, {}), 2, 0)
    assert grid.get_node_ids() == [1000, 1001, 1002, 1003]
    for name in ("push_messages", "pull_messages", "execute", "_replies"):
        assert not hasattr(grid, name)
    asked = [Message(RecordDict(), 1000, "train"), Message(RecordDict(), 1001, "query")]
    with pytest.raises(ValueError, match="types \\['query', 'train'\\] at once"):
        grid.send_and_receive(asked)


def test_a_client_that_fails_takes_its_cohort_with_it() -> None:
    class OneFails(InProcessGrid):
        def execute(self, messages: list[Message], timeout: float | None) -> list[Message]:
            replies = super().execute(messages, timeout)
            bad = messages[2]
            return [
                Message(Error(code=1, reason="out of memory"), reply_to=bad) if i == 2 else reply
                for i, reply in enumerate(replies)
            ]

    from flwr.serverapp.strategy import FedAvg

    app = ServerApp()
    seen_: list[int] = []

    class Spy(FedAvg):
        def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
            seen_.append(len(list(replies)))
            return None, None

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        strategy = Participation(Spy(fraction_evaluate=0.0, min_available_nodes=4), 1.0, 0)
        strategy.start(
            cast(Grid, SecureAggregation(grid, 2, 0)), start_arrays(), num_rounds=1
        )  # fmt: skip

    with pytest.raises(SimulationError, match="round 1, client 2: out of memory"):
        run_server(app, OneFails("tests.apps.plain_app:app", 4, {}), {})
    assert not seen_


def test_cohorts_part_the_clients_anew_each_round() -> None:
    drawn = [1, 2, 3, 5, 8, 13]
    split = cohorts(0, 1, drawn, 2)
    assert sorted(sum(split, ())) == drawn
    assert [len(part) for part in split] == [2, 2, 2]
    assert split == cohorts(0, 1, list(reversed(drawn)), 2)
    assert len({tuple(cohorts(0, round_, drawn, 2)) for round_ in range(8)}) > 4
    assert cohorts(0, 1, drawn, 6) == [tuple(drawn)]
    with pytest.raises(ValueError, match="6 clients cannot be split into cohorts of 4"):
        cohorts(0, 1, drawn, 4)


def test_the_mean_weighs_keeps_dtypes_and_rounds_integers() -> None:
    parts = [
        {"a": torch.tensor([1.0, 3.0], dtype=torch.float16), "n": torch.tensor(4)},
        {"a": torch.tensor([5.0, -1.0], dtype=torch.float16), "n": torch.tensor(7)},
    ]
    averaged = mean(parts, [0.25, 0.75])
    assert averaged["a"].tolist() == [4.0, 0.0]
    assert averaged["a"].dtype == torch.float16
    assert (averaged["n"].item(), averaged["n"].dtype) == (6, torch.int64)


def test_what_is_granted_of_a_cohort() -> None:
    knowledge = Knowledge(
        labels=(1, 7), num_examples=2, lengths=(5, 9), local_steps=1, batch_size=2
    )
    two = Knowledge(labels=(3,), num_examples=1, lengths=(7,), local_steps=2, batch_size=2)
    pooled = Knowledge.pooled([knowledge, two])
    assert pooled == Knowledge(
        labels=(1, 3, 7), num_examples=3, lengths=(5, 7, 9), batch_size=2, cohort=2
    )
    assert Knowledge.pooled([Knowledge(), Knowledge()]) == Knowledge(cohort=2)


def test_texts_are_joined_by_padding_and_targets_by_what_is_not_predicted() -> None:
    short = Batch(torch.tensor([[5, 6]]), torch.tensor([[5, 6]]), torch.ones(1, 2).long())
    long_ = Batch(torch.tensor([[7, 8, 9]]), torch.tensor([[7, 8, 9]]), torch.ones(1, 3).long())
    both = joined([short, long_])
    assert both.inputs.tolist() == [[5, 6, 0], [7, 8, 9]]
    assert both.labels.tolist() == [[5, 6, -100], [7, 8, 9]]
    assert both.mask is not None
    assert both.mask.tolist() == [[1, 1, 0], [1, 1, 1]]


@pytest.mark.slow
def test_a_cohort_is_scored_against_all_its_examples(make_run: Make) -> None:
    from attacks.scheduling.ledger import Ledger
    from experiments.console import Console
    from experiments.stages.attack import attackers

    run = trained(make_run, IMAGES, "run", federation={**SIX, "rounds": 1, "secure_aggregation": 3})
    with (
        Ledger(run.root / "jobs.sqlite") as ledger,
        attackers(run, ledger, Console(quiet=True)) as team,
    ):
        team.submit(run.cells[0])
    rows = [row for row in Scorer(Victims(run.cells[0])).rows() if row.metric == "mse"]
    mine = [row for row in rows if row.attack == "inverting" and row.control == "none"]
    assert [(row.client, row.example) for row in mine] == [(c, i) for c in (0, 1) for i in range(6)]
    assert all(row.status == "done" and row.value is not None for row in mine)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"federation": {"secure_aggregation": 4}}, "secure_aggregation = 4 does not divide the 6"),
        (
            {"federation": {"secure_aggregation": 2, "participation": 0.5}},
            "secure_aggregation = 2 does not divide the 3",
        ),
        (
            {"federation": {**AVERAGING, "secure_aggregation": 2, "strategy": "fedmedian"}},
            "strategy 'fedmedian' needs individual updates",
        ),
        (
            {"federation": {"secure_aggregation": 2}, "probes": {"member": 1}},
            "probes: 1 probes were requested",
        ),
        (
            {"federation": {"secure_aggregation": 2}, "capture": {"clients": [3]}},
            "capture.clients: 3 is out of range: the cohorts of this federation are numbered",
        ),
    ],
)
def test_what_secure_aggregation_rules_out(
    changes: dict[str, Any], said: str, make_run: Make
) -> None:
    table = merge(merge(IMAGES, {"federation": SIX}), changes)
    with pytest.raises(ConfigError, match=said):
        make_run(parse_experiment(table).model_dump(mode="json", exclude_none=True))
