"""The control of an attack is the update of somebody else's rows, or there is none."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pytest

from experiments.pipeline import execute
from experiments.stages.controls import controls
from experiments.stages.rows import read_rows
from fedsim.capture import CaptureKey
from fedsim.records import OTHER_CLIENT, SECOND_CLIENT, ProbeKind, ScoreRow
from fedsim.truth import TruthRecord
from tests.apps.cases import TEXT, Make

FEDAVG = {"protocol": "fedavg", "clients": 2, "rounds": 2, "client_rows": 0, "batch_size": 1}


def key(round_: int, client: int) -> CaptureKey:
    return CaptureKey(round=round_, client=client)


def about(
    keys: Iterable[CaptureKey], rows: Mapping[CaptureKey, int], probe: ProbeKind = "none"
) -> dict[CaptureKey, TruthRecord]:
    """One row a capture, its own where none is named."""
    return {
        k: TruthRecord(
            key=k,
            sha256="",
            rows=(rows.get(k, 100 * k.round + k.client),),
            steps=((0,),),
            probe=probe,
        )
        for k in keys
    }


ROUND = [key(2, client) for client in (0, 1, 2)]
ALL = [key(round_, client) for round_ in (1, 2, 3) for client in (0, 1, 2)]
ALONE = [key(round_, 1) for round_ in (1, 2, 3)]


@pytest.mark.parametrize(
    ("keys", "rows", "found"),
    [
        (ALL, {}, [key(2, 2), key(2, 0)]),
        (ALONE, {}, [key(3, 1), key(1, 1)]),
        ([key(2, 1)], {}, []),
        # Somebody who has used the same row stands in for nobody.
        (ROUND, {key(2, 1): 7, key(2, 2): 7}, [key(2, 0)]),
        (ALL, {key(2, client): 7 for client in (0, 1, 2)}, [key(3, 1), key(1, 1)]),
        (ALONE, {key(2, 1): 7, key(3, 1): 7}, [key(1, 1)]),
    ],
)
def test_the_next_two_clients_of_the_round_else_the_next_two_rounds(
    keys: list[CaptureKey], rows: dict[CaptureKey, int], found: list[CaptureKey]
) -> None:
    names = (OTHER_CLIENT, SECOND_CLIENT)
    assert controls(about(keys, rows))[key(2, 1)] == dict(zip(names, found, strict=False))


def test_a_probe_is_no_control_of_a_client() -> None:
    records = {**about(ROUND, {}), **about([key(2, 3), key(2, 4)], {}, "member")}
    assert controls(records)[key(2, 2)] == {OTHER_CLIENT: key(2, 0), SECOND_CLIENT: key(2, 1)}
    assert controls(records)[key(2, 3)] == {OTHER_CLIENT: key(2, 4)}


def test_a_thousand_captures_are_not_compared_in_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    records = about([key(1, client) for client in range(1000)], {})
    asked = 0

    def compare(self: CaptureKey, other: object) -> bool:
        nonlocal asked
        asked += 1
        return isinstance(other, CaptureKey) and str(self) == str(other)

    monkeypatch.setattr(CaptureKey, "__eq__", compare)
    assert set(map(len, controls(records).values())) == {2}
    assert asked < 20 * len(records)


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
