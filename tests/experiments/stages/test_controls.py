"""The control of an attack is the update of somebody else's rows, or there is none."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Literal

import pytest
import torch

from experiments.pipeline import execute
from experiments.stages.attack import Donor, Facts, donors, jobs
from experiments.stages.score import guessed_for_others, nearest_for_others
from fedsim.knowledge import Knowledge
from fedsim.metrics.tokens import Tokens
from fedsim.records import OTHER_CLIENT, OTHER_CLIENTS, SECOND_CLIENT, ScoreRow
from fedsim.store.capture import CaptureKey, Observation
from fedsim.store.rows import read_rows
from tests.apps.cases import IMAGES, TEXT, Make, simulate

FEDAVG = {"protocol": "fedavg", "clients": 2, "rounds": 2, "client_rows": 0, "batch_size": 1}
CONTROLS = {OTHER_CLIENT, SECOND_CLIENT}


def key(round_: int, client: int) -> CaptureKey:
    return CaptureKey(round=round_, client=client)


def about(
    keys: Iterable[CaptureKey], knowledge: Mapping[CaptureKey, str], probe: str = "none"
) -> dict[CaptureKey, Facts]:
    """Equal facts where none are named."""
    return {k: (probe, knowledge.get(k, "")) for k in keys}


ROUND = [key(2, client) for client in (0, 1, 2)]
ALL = [key(round_, client) for round_ in (1, 2, 3) for client in (0, 1, 2)]
ALONE = [key(round_, 1) for round_ in (1, 2, 3)]


@pytest.mark.parametrize(
    ("keys", "knowledge", "found"),
    [
        (ALL, {}, {Donor(key(2, 2)), Donor(key(2, 0))}),
        (ALONE, {}, {Donor(key(3, 1)), Donor(key(1, 1))}),
        ([key(2, 1)], {}, set()),
        # Another client's guess was made with other facts: the attack has to be run again.
        (ROUND, {key(2, 2): "class 7"}, {Donor(key(2, 0))}),
        (ROUND[:2], {key(2, 0): "class 7"}, {Donor(key(2, 0), 0)}),
        (ALONE[:2], {key(1, 1): "class 7"}, {Donor(key(1, 1), 0)}),
    ],
)
def test_donors_are_other_clients_of_the_round_else_other_rounds(
    keys: list[CaptureKey], knowledge: dict[CaptureKey, str], found: set[Donor]
) -> None:
    assert set(donors(about(keys, knowledge), 0, 1)[key(2, 1)]) == found


@pytest.mark.parametrize("wanted", [0, 1, 2])
def test_as_many_jobs_as_equal_facts_lack(wanted: int) -> None:
    unequal = {k: str(k) for k in ROUND}
    for value in donors(about(ROUND, unequal), 0, wanted).values():
        assert [donor.job for donor in value] == [0, 1][:wanted]
    assert len(donors(about(ROUND, {ROUND[0]: "alone"}), 0, wanted)[ROUND[1]]) == max(1, wanted)


def test_each_client_draws_its_donors_for_itself_and_keeps_them_over_rounds() -> None:
    keys = [key(round_, client) for round_ in (1, 2) for client in range(50)]
    found = donors(about(keys, {}), 0, 1)
    assert {len(some) for some in found.values()} == {8}
    for client in range(50):
        clients = [[d.key.client for d in found[key(r, client)]] for r in (1, 2)]
        assert clients[0] == clients[1]
        assert client not in clients[0]
        assert len(set(clients[0])) == 8
    # In a permutation each would be drawn once.
    assert max(Counter(found[k][0].key for k in keys).values()) > 1
    assert found == donors(about(keys, {}), 0, 1)
    assert found != donors(about(keys, {}), 1, 1)


def test_a_probe_is_no_control_of_a_client() -> None:
    facts = {**about(ROUND, {}), **about([key(2, 3), key(2, 4)], {}, "member")}
    assert {donor.key.client for donor in donors(facts, 0, 1)[key(2, 2)]} == {0, 1}
    assert donors(facts, 0, 1)[key(2, 3)] == (Donor(key(2, 4)),)


def test_a_thousand_captures_are_not_compared_in_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = about([key(1, client) for client in range(1000)], {})
    asked = 0

    def compare(self: CaptureKey, other: object) -> bool:
        nonlocal asked
        asked += 1
        return isinstance(other, CaptureKey) and str(self) == str(other)

    monkeypatch.setattr(CaptureKey, "__eq__", compare)
    assert set(map(len, donors(facts, 0, 1).values())) == {8}
    assert asked < 20 * len(facts)


@pytest.mark.parametrize("kind", ["gradient", "weights"])
def test_a_control_keeps_the_victims_facts_and_model(kind: Literal["gradient", "weights"]) -> None:
    def seen(client: int, start: float, reply: float) -> Observation:
        counter, knowledge = torch.tensor(client), Knowledge(labels=(client,))
        received = {"w": torch.tensor([reply]), "steps": counter}
        return Observation(key(1, client), {"w": torch.tensor([start])}, received, kind, knowledge)

    victim, donor = seen(0, 1.0, 3.0), seen(1, 5.0, 5.5)
    control = victim.with_reply_of(donor)
    assert (control.key, control.knowledge, control.sent) == (
        *(victim.key, victim.knowledge, victim.sent),
    )
    # The reply is the donor's: its gradient, or its way from the model that it was sent.
    assert torch.equal(control.update()["w"], donor.update()["w"])
    assert control.received["steps"] == 1


def test_texts_that_were_guessed_for_clients_who_lack_them() -> None:
    a, b, alone = key(1, 0), key(1, 1), key(2, 0)
    texts: dict[CaptureKey, list[Tokens]] = {a: [(1, 2), (3,)], b: [(3,), (4,)], alone: [(4,)]}
    guesses: dict[CaptureKey, list[Tokens]] = {
        a: [(4,), (3,), (1, 2)],
        b: [(3,), (5,)],
        alone: [(1, 2)],
    }
    # (3,) is held by both, (4,) was guessed for the first, and round 2 has no other client.
    assert guessed_for_others(guesses, texts) == {a: [False, False], b: [False, True]}
    assert guessed_for_others({a: [(4,)]}, texts) == {b: [False, True]}


def scored(run: Any) -> list[ScoreRow]:
    execute(run, ("simulate", "attack", "score"), quiet=True)
    return read_rows(run.root / "scores.parquet", ScoreRow)


@pytest.mark.slow
def test_the_same_rows_in_another_round_are_no_control(make_run: Make) -> None:
    # A client of FedAvg uses all its rows in each round: an attack on its next round is no null.
    task = {"split": "train[:8]"}
    both = make_run(TEXT, folder="both", task=task, federation=FEDAVG)
    alone = make_run(TEXT, folder="alone", task=task, federation=FEDAVG, capture={"clients": [0]})
    found = {}
    for name, run in (("both", both), ("alone", alone)):
        rows = scored(run)
        assert {row.round for row in rows} == {1, 2}
        found[name] = {row.control for row in rows}
    assert found == {"both": {"none", OTHER_CLIENT, OTHER_CLIENTS}, "alone": {"none"}}


@pytest.mark.some(6)
@pytest.mark.parametrize(
    ("base", "fact"), [(IMAGES, "labels"), (TEXT, "lengths"), (IMAGES, ""), (TEXT, "")]
)
def test_a_control_costs_a_job_where_a_granted_fact_differs(
    make_run: Make, base: dict[str, Any], fact: str
) -> None:
    knows = {fact: True} if fact else {}
    run = make_run(base, server_knows=knows, federation={"rounds": 1, "client_rows": 3})
    simulate(run)
    (cell,) = run.cells
    extra = [spec for spec in jobs(cell) if spec.donors]
    assert bool(extra) == bool(fact)
    assert not any(spec.table["name"] == "prior_only" for spec in extra)
    controls = {row.control for row in scored(run)}
    assert OTHER_CLIENT in controls
    assert (SECOND_CLIENT in controls) <= (not fact)


def test_images_are_compared_with_guesses_at_other_clients_of_the_round() -> None:
    a, b, c, later = (CaptureKey(round=r, client=i) for r, i in ((1, 0), (1, 1), (1, 2), (2, 1)))
    images = {key: torch.full((1, 1, 2, 2), level) for key, level in ((a, 0.1), (b, 0.5), (c, 0.1))}
    guesses = {
        a: images[a],
        b: torch.cat([images[a], images[c] + 0.2]),
        c: images[c],
        later: images[a],
    }
    rows = {a: (7,), b: (8,), c: (7,), later: (9,)}
    nearest = nearest_for_others(guesses, images, rows)
    assert nearest[a] == [0.0]  # by b; c holds the same row
    assert nearest[b] == [pytest.approx(0.16)]
    assert nearest_for_others({a: images[a]}, images, rows)[c] == [math.inf]
    assert a not in nearest_for_others({a: images[a]}, images, rows)
