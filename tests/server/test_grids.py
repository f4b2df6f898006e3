"""Engines: order, errors, and workers that die or hang."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MessageType, RecordDict
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from fedsim.errors import SimulationError, Terminated
from server.grids.in_process import InProcessGrid
from server.grids.local import LocalGrid, load_app, run_server
from server.grids.ray import RayGrid, Workers
from server.participation import Participation
from tests.apps.plain_app import start_arrays

CLIENTS, ROUNDS = 4, 3


def in_process(fault: str = "") -> LocalGrid:
    return InProcessGrid("tests.apps.plain_app:app", CLIENTS, {"fault": fault})


@pytest.fixture(scope="module")
def workers(ray_cluster: None) -> Iterator[Workers]:
    team = Workers("tests.apps.plain_app:app", 2)
    yield team
    team.close()


def on_ray(workers: Workers, fault: str = "", timeout: float = 60.0) -> LocalGrid:
    return RayGrid(workers, CLIENTS, {"fault": fault}, timeout=timeout)


def train(
    grid: LocalGrid, share: float = 1.0, seed: int = 0
) -> tuple[dict[str, bytes], Participation]:
    final: dict[str, bytes] = {}
    inner = FedAvg(fraction_evaluate=0.0, min_train_nodes=1, min_available_nodes=1)
    strategy = Participation(inner, share, seed)
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        result = strategy.start(grid, start_arrays(), num_rounds=ROUNDS)
        final.update({name: array.data for name, array in result.arrays.items()})

    run_server(app, grid, {})
    return final, strategy


def test_a_client_that_raises_ends_the_run_in_process() -> None:
    with pytest.raises(SimulationError, match=r"round 2, client 1: ValueError: no such row: 17"):
        train(in_process("raise"))


@pytest.mark.parametrize(
    ("fault", "reason"), [("leave", "SystemExit: 0"), ("beyond", "Gen.*: all")]
)
def test_a_client_that_exits_ends_the_run_and_not_the_process(fault: str, reason: str) -> None:
    with pytest.raises(SimulationError, match=rf"round 2, client 1: {reason}\. The run has ended"):
        train(in_process(fault))


@pytest.mark.parametrize(
    ("fault", "error"), [("interrupt", KeyboardInterrupt), ("terminated", Terminated)]
)
def test_a_user_ends_the_process(fault: str, error: type[BaseException]) -> None:
    with pytest.raises(error):
        train(in_process(fault))


def test_what_a_client_changes_is_put_back() -> None:
    before = Path.cwd()
    assert train(in_process("change"))[0] == train(in_process())[0]
    assert (Path.cwd(), torch.get_default_dtype()) == (before, torch.float32)


def test_participation_is_drawn_from_the_seed() -> None:
    half, strategy = train(in_process(), share=0.5)
    assert train(in_process(), share=0.5)[0] == half
    assert train(in_process(), share=0.5, seed=1)[0] != half
    size = sum(len(array.data) for array in start_arrays().values())
    assert strategy.bytes_up == dict.fromkeys((1, 2, 3), 2 * size)


def test_at_least_one_client_takes_part() -> None:
    _, strategy = train(in_process(), share=0.01)
    assert all(strategy.bytes_up.values())


def test_pushed_messages_are_answered_once() -> None:
    grid = in_process()
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        content = RecordDict({"arrays": ArrayRecord()})
        content["config"] = ConfigRecord({"server-round": 1})
        nodes = list(grid.get_node_ids())
        messages = [Message(content, node, MessageType.TRAIN) for node in nodes]
        ids = list(grid.push_messages(messages))
        assert len(set(ids)) == CLIENTS
        replies = list(grid.pull_messages(ids))
        assert [reply.metadata.src_node_id for reply in replies] == nodes
        assert list(grid.pull_messages(ids)) == []

    run_server(app, grid, {})


def test_app_is_loaded_by_name() -> None:
    assert load_app("tests.apps.plain_app:app") is load_app("tests.apps.plain_app:app")


@pytest.mark.slow
@pytest.mark.ray
def test_one_ray_worker_gives_the_bits_of_in_process(ray_cluster: None) -> None:
    alone = Workers("tests.apps.plain_app:app", 1)  # before ``workers`` takes both CPUs
    try:
        assert train(on_ray(alone))[0] == train(in_process())[0]
    finally:
        alone.close()


@pytest.mark.ray
def test_two_ray_workers_give_the_bits_of_in_process(workers: Workers) -> None:
    grid = on_ray(workers)
    assert train(grid)[0] == train(in_process())[0]
    assert grid.incidents == []


@pytest.mark.ray
def test_a_client_that_raises_ends_the_run_on_ray(workers: Workers) -> None:
    with pytest.raises(SimulationError, match=r"round 2, client 1: ValueError: no such row: 17"):
        train(on_ray(workers, "raise"))


@pytest.mark.ray
@pytest.mark.parametrize(
    ("kind", "said", "timeout"),
    [
        ("die", "worker died", 120.0),
        pytest.param("hang", "no answer within", 30.0, marks=pytest.mark.slow),
    ],
)
def test_a_dead_or_hung_worker_is_replaced_and_recorded(
    kind: str, said: str, timeout: float, tmp_path: Path, workers: Workers
) -> None:
    # The time includes the start of the new worker, on a machine that may have other work.
    grid = on_ray(workers, f"{kind}:{tmp_path / 'once'}", timeout=timeout)
    assert train(grid)[0] == train(in_process())[0]
    assert len(grid.incidents) == 1
    assert said in grid.incidents[0]
    assert grid.incidents[0].startswith("client 1: ")


@pytest.mark.ray
def test_a_client_that_dies_each_time_ends_the_run(workers: Workers) -> None:
    grid = on_ray(workers, "die")
    with pytest.raises(SimulationError, match=r"round 2, client 1: the client's worker died, 2 t"):
        train(grid)
    assert [incident.rpartition("; ")[2] for incident in grid.incidents] == [
        "replaced the worker and ran the client again",
        "gave up",
    ]
