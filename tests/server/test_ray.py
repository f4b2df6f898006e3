"""Clients in processes of a Ray cluster."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from fedsim.errors import SimulationError
from server.grids.local import LocalGrid
from server.grids.ray import RayGrid, Workers
from tests.server.cases import CLIENTS, in_process, train


@pytest.fixture(scope="module")
def workers(ray_cluster: None) -> Iterator[Workers]:
    team = Workers("tests.apps.plain_app:app", 2)
    yield team
    team.close()


def on_ray(workers: Workers, fault: str = "", timeout: float = 60.0) -> LocalGrid:
    return RayGrid(workers, CLIENTS, {"fault": fault}, timeout=timeout)


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


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.parametrize(
    ("kind", "said", "timeout"),
    [
        ("die", "worker died", 120.0),
        ("hang", "no answer within", 30.0),
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


@pytest.mark.slow
@pytest.mark.ray
def test_a_client_that_dies_each_time_ends_the_run(workers: Workers) -> None:
    grid = on_ray(workers, "die")
    with pytest.raises(SimulationError, match=r"round 2, client 1: the client's worker died, 2 t"):
        train(grid)
    assert [incident.rpartition("; ")[2] for incident in grid.incidents] == [
        "replaced the worker and ran the client again",
        "gave up",
    ]
