"""Which rows a probe gets."""

from typing import Any

import pytest
import torch

from clients.probes import Probe, make_probes
from fedsim.config.cell import CaptureConfig, CellConfig, ProbesConfig, ServerKnows, TaskConfig
from fedsim.config.federation import FederationConfig
from fedsim.data.holdings import Holdings
from fedsim.errors import ConfigError
from fedsim.local.steps import schedule
from fedsim.participation import draw
from fedsim.store.capture import CaptureStore
from fedsim.types import Rows
from tests.apps.cases import IMAGES, Make, simulate

PARTS = [[0, 1, 2, 3, 4, 5], [6, 7, 8], [9, 10, 11, 12]]


def rows(*words: str, start: int = 0) -> Rows:
    numbers = tuple(range(start, start + len(words)))
    return Rows(words, torch.zeros(len(words), dtype=torch.int64), numbers)


PRIVATE = rows(*(f"private {i}" for i in range(13)))
HELDOUT = rows("Private  3", "known", *(f"held {i}" for i in range(8)), start=100)
HOLDINGS = Holdings(PRIVATE, rows("known"), HELDOUT)


def cell(member: int = 0, fresh: int = 0, seed: int = 0, **federation: Any) -> CellConfig:
    return CellConfig(
        seed=seed,
        task=TaskConfig(model="m", dataset="d"),
        auxiliary=None,
        federation=FederationConfig.model_validate({"clients": 3, "rounds": 4} | federation),
        capture=CaptureConfig(),
        probes=ProbesConfig(member=member, fresh=fresh),
        server_knows=ServerKnows(),
        defense=(),
    )


def probes(member: int = 0, fresh: int = 0, **options: Any) -> tuple[Probe, ...]:
    return make_probes(cell(member, fresh, **options), HOLDINGS, PARTS)


def trained(config: CellConfig, client: int) -> list[int]:
    """Row numbers in the order in which the client trains on them, with repeats."""
    federation, part = config.federation, PARTS[client]
    return [
        part[position]
        for round_ in range(1, federation.rounds + 1)
        if client in draw(config.seed, round_, 3, federation.participation)
        for step in schedule(federation, config.seed, len(part), round_, client)
        for position in step
    ]


@pytest.mark.parametrize("participation", [1.0, 0.5])
def test_members_are_the_first_rows_that_a_client_trains_on(participation: float) -> None:
    options: dict[str, Any] = {"participation": participation, "rounds": 8}
    members = probes(member=5, **options)
    assert [probe.host for probe in members] == [0, 1, 2, 0, 1]
    assert {probe.kind for probe in members} == {"member"}
    for client in range(3):
        mine = [n for probe in members if probe.host == client for n in probe.rows.numbers]
        first = list(dict.fromkeys(trained(cell(**options), client)))
        assert mine == first[: len(mine)]


def test_a_client_that_trains_on_too_few_rows_is_passed_over() -> None:
    members = probes(member=4, batch_size=2, rounds=40)
    assert [probe.host for probe in members] == [0, 1, 2, 0]
    assert [probe.host for probe in probes(member=6, batch_size=2, rounds=40)] == [0, 1, 2, 0, 2, 0]


@pytest.mark.parametrize(
    ("options", "sizes"),
    [
        ({"batch_size": 2}, [2, 2, 2]),
        ({"batch_size": 4}, [4, 3, 4]),
        ({"protocol": "fedavg", "client_rows": 5}, [5, 3, 4]),
        ({"protocol": "fedavg", "local_steps": 9}, [6, 3, 4]),
    ],
)
def test_a_probe_is_as_large_as_its_host_s_own_work(
    options: dict[str, Any], sizes: list[int]
) -> None:
    config = cell(member=3, fresh=3, **options)
    held = rows(*(f"held {i}" for i in range(20)), start=100)
    found = make_probes(config, Holdings(PRIVATE, None, held), PARTS)
    assert [len(probe.rows) for probe in found] == sizes + sizes
    assert [probe.owned for probe in found] == [6, 3, 4, 6, 3, 4]
    assert [probe.host for probe in found] == [0, 1, 2, 0, 1, 2]


def test_fresh_rows_are_like_no_private_and_no_auxiliary_row() -> None:
    members = probes(fresh=8)
    numbers = [number for probe in members for number in probe.rows.numbers]
    assert sorted(numbers) == list(range(102, 110))
    assert [p.rows.numbers for p in probes(fresh=8)] == [p.rows.numbers for p in members]
    assert [p.rows.numbers for p in probes(fresh=8, seed=1)] != [p.rows.numbers for p in members]


def test_no_probe_is_the_default() -> None:
    assert probes() == ()


def test_more_probes_than_rows_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"probes.member: 4 are requested, .* suffice for 3\."):
        probes(member=4, rounds=1)
    with pytest.raises(ConfigError, match=r"probes.fresh: 9 of them need 9 rows, but only 8 held"):
        probes(fresh=9)


def test_the_server_is_told_of_a_probe_what_holds_for_its_host(make_run: Make) -> None:
    for split, whole in (("train[:2]", True), ("train[:4]", False)):
        federation = {"clients": 2, "batch_size": 1, "protocol": "fedsgd"}
        run = make_run(
            IMAGES, split, task={"split": split}, federation=federation, probes={"member": 1}
        )
        simulate(run)
        store = CaptureStore(run.cells[0].captures.root)
        told = {key.client: store.record(key).knowledge.all_rows for key in store.keys()}
        assert told == {0: whole, 1: whole, 2: whole}
