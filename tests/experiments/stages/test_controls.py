"""The control of an attack is the update of somebody else's rows, or there is none."""

from __future__ import annotations

from experiments.pipeline import execute
from experiments.stages.rows import read_rows
from experiments.stages.score import other_clients
from fedsim.capture import CaptureKey
from fedsim.records import OTHER_CLIENT, ScoreRow
from tests.apps.cases import TEXT, Make

FEDAVG = {"protocol": "fedavg", "clients": 2, "rounds": 2, "client_rows": 0, "batch_size": 1}


def key(round_: int, client: int) -> CaptureKey:
    return CaptureKey(round=round_, client=client)


def test_the_next_two_clients_of_the_round_else_the_next_two_rounds() -> None:
    keys = [key(round_, client) for round_ in (1, 2, 3) for client in (0, 1, 2)]
    assert other_clients(key(2, 1), keys) == [key(2, 2), key(2, 0)]
    alone = [key(round_, 1) for round_ in (1, 2, 3)]
    assert other_clients(key(2, 1), alone) == [key(3, 1), key(1, 1)]
    assert other_clients(key(2, 1), [key(2, 1)]) == []


def test_the_same_rows_in_another_round_are_no_control(make_run: Make) -> None:
    # A client of FedAvg uses all its rows in each round: an attack on its next round is no null.
    task = {"split": "train[:8]"}
    both = make_run(TEXT, folder="both", task=task, federation=FEDAVG)
    alone = make_run(TEXT, folder="alone", task=task, federation=FEDAVG, capture={"clients": [0]})
    controls = {}
    for name, run in (("both", both), ("alone", alone)):
        execute(run, ("simulate", "attack", "score"), quiet=True)
        rows = read_rows(run.root / "scores.parquet", ScoreRow)
        assert {row.round for row in rows} == {1, 2}
        controls[name] = {row.control for row in rows}
    assert controls == {"both": {"none", OTHER_CLIENT}, "alone": {"none"}}
