"""The level of a setting, and the options that a declared level sets."""

from pathlib import Path
from typing import Any

import pytest

from experiments.plan import levels
from experiments.plan.cells import Cell, make_cells
from experiments.plan.config import Plan, parse_experiment
from experiments.plan.folder import Run
from experiments.plan.levels import CONDITIONS, LEVELS, level_of
from experiments.plan.overrides import override
from experiments.wording.threat import threat_model
from fedsim.errors import ConfigError

BASE: dict[str, Any] = {"name": "x", "task": {"model": "lenet", "dataset": "shapes"}}


def cells(**changes: Any) -> list[Cell]:
    config = parse_experiment({**BASE, **changes})
    return make_cells(Plan(name="x", experiments=(config,)), Path("nowhere"))


def reached(**changes: Any) -> list[str]:
    return [level_of(cell.config) for cell in cells(**changes)]


@pytest.mark.parametrize("level", LEVELS)
def test_a_declared_level_is_reached(level: str) -> None:
    assert reached(level=level) == [level]


def test_without_a_level_nothing_is_filled_in() -> None:
    (cell,) = cells()
    assert cell.experiment.level is None
    assert level_of(cell.config) == "L1"
    assert not cell.config.server_knows.labels
    assert cell.config.federation.batch_size == 1


def test_the_options_that_each_level_sets() -> None:
    rungs = [cells(level=level)[0].config for level in LEVELS]
    assert [c.federation.protocol for c in rungs] == ["fedsgd", "fedsgd", "fedavg", "fedavg"]
    assert [c.federation.batch_size for c in rungs] == [1, 4, 4, 4]
    assert [c.federation.train_mode for c in rungs] == [False, True, True, True]
    assert [c.federation.partition for c in rungs] == ["iid", "iid", "dirichlet", "dirichlet"]
    assert [c.federation.rounds for c in rungs] == [1, 1, 3, 3]
    assert [c.federation.cohort for c in rungs] == [1, 1, 1, 2]
    assert [sorted(c.server_knows.grants()) for c in rungs] == [
        sorted(cells()[0].config.server_knows.grants() | {"labels", "lengths"}),
        sorted(cells()[0].config.server_knows.grants()),
        sorted(cells()[0].config.server_knows.grants()),
        ["auxiliary", "defense", "train_mode"],
    ]


def test_what_stands_in_the_file_wins() -> None:
    federation = {"batch_size": 7, "partition": "by-label", "clients": 12}
    (cell,) = cells(level="L4", federation=federation, server_knows={"auxiliary": False})
    run = cell.config.federation
    assert (run.batch_size, run.partition, run.drawn, run.cohort) == (7, "by-label", 6, 6)
    assert not cell.config.server_knows.auxiliary
    assert reached(level="L1", federation={"train_mode": True}) == ["L1"]


@pytest.mark.parametrize(
    ("level", "changes", "said"),
    [
        ("L2", {"federation": {"batch_size": 1}}, "federation.batch_size: 1 .*at least 2"),
        ("L2", {"server_knows": {"labels": True}}, "server_knows.labels: true .*needs false.*'L1'"),
        ("L3", {"federation": {"protocol": "fedsgd"}}, "'fedsgd' .*'L3'.*needs 'fedavg'.*'L2'"),
        ("L3", {"federation": {"local_steps": 1}}, "federation.local_epochs: .*at least 2"),
        ("L3", {"federation": {"partition": "iid"}}, "federation.partition: 'iid' .*not 'iid'"),
        ("L3", {"federation": {"rounds": 2}}, "federation.rounds: 2 .*at least 3"),
        ("L3", {"capture": {"rounds": [1, 3]}}, r"capture.rounds: \[1, 3\] .*at least 3"),
        ("L4", {"federation": {"participation": 1.0}}, "participation: 1.0 .*less than 1.*'L3'"),
        ("L4", {"federation": {"secure_aggregation": 0}}, "secure_aggregation: 0 .*at least 2"),
        ("L4", {"federation": {"clients": 2}}, "secure_aggregation: 1 .*at least 2"),
        ("L4", {"server_knows": {"optimizer": True}}, "server_knows.optimizer: true .*false"),
    ],
)
def test_a_contradiction_is_named(level: str, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        cells(level=level, **changes)


@pytest.mark.parametrize("level", LEVELS[1:])
def test_every_condition_decides(level: levels.Level) -> None:
    below = LEVELS[LEVELS.index(level) - 1]
    against: dict[str, object] = {
        "federation.batch_size": 1,
        "federation.train_mode": False,
        "federation.protocol": "fedsgd",
        "federation.local_epochs": 1,
        "federation.partition": "iid",
        "federation.rounds": 2,
        "capture.rounds": [1, 2],
        "federation.participation": 1.0,
        "federation.secure_aggregation": 0,
    }
    for condition in CONDITIONS[level]:
        value = against.get(condition.option, True)
        table = parse_experiment({**BASE, "level": level}).model_dump(
            mode="json", exclude_none=True
        )
        table["level"] = "L1"
        table["federation"]["client_rows"] = 0
        table = override(table, [])
        section, name = condition.option.split(".")
        table[section][name] = value
        found = level_of(make_cells(one(table), Path("nowhere"))[0].config)
        assert found == below, condition.option


def one(table: dict[str, Any]) -> Plan:
    return Plan(name="x", experiments=(parse_experiment(table),))


def test_levels_can_be_swept_and_read_back(tmp_path: Path) -> None:
    table = {**BASE, "federation": {"clients": 8}, "sweep": {"level": ["L1", "L2", "L3", "L4"]}}
    run = Run.create(one(table), tmp_path / "run")
    assert [level_of(cell.config) for cell in run.cells] == list(LEVELS)
    assert [cell.experiment.level for cell in run.cells] == list(LEVELS)
    assert [cell.config.federation.cohort for cell in run.cells] == [1, 1, 1, 4]
    again = Run.open(tmp_path / "run")
    assert [cell.name for cell in again.cells] == [cell.name for cell in run.cells]
    chosen = parse_experiment(override(dict(table), ["level=L2"]))
    assert chosen.level == "L2"
    assert not chosen.sweep


def test_a_swept_option_is_not_filled_in() -> None:
    found = cells(level="L2", sweep={"federation.batch_size": [2, 8]})
    assert [cell.config.federation.batch_size for cell in found] == [2, 8]
    both = cells(sweep={"level": ["L1", "L2"], "federation.batch_size": [2, 8]})
    assert [cell.config.federation.batch_size for cell in both] == [2, 8, 2, 8]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"level": "L7"}, 'level: "L7" does not fit'),
        ({"level": "L0"}, 'level: "L0" does not fit'),
        ({"sweep": {"level": ["L1", "L9"]}}, "sweep.level: 'L9' is not a level"),
        ({"level": "L1", "sweep": {"level": ["L2"]}}, "level: 'L1' is set"),
        ({"level": "L4", "federation": {"clients": "many"}}, 'federation.clients: "many"'),
        ({"level": "L2", "federation": 3}, "federation: 3 does not fit"),
    ],
)
def test_mistakes_with_levels(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        cells(**changes)


def test_the_card_tells_the_level_and_what_reaches_the_server() -> None:
    card = threat_model([cell.config for cell in cells(sweep={"level": ["L1", "L4"]})])
    told = dict(card.protocol)
    assert told["realism"] == "L1 or L4"
    assert "no secure aggregation" in told["what comes back"]
    assert "each cohort of 2 clients" in told["what comes back"]
