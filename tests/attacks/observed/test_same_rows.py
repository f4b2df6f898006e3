"""When the server knows that a client held the same rows in several rounds."""

import torch

from attacks.observed.same_rows import same_rows
from fedsim.knowledge import Knowledge
from fedsim.store.capture import CaptureKey, Kind, Observation


def seen(round_: int, client: int = 0, kind: Kind = "gradient", **facts: object) -> Observation:
    known = Knowledge.model_validate({"num_examples": 2, "all_rows": True, **facts})
    tensors = {"weight": torch.zeros(1)}
    return Observation(CaptureKey(round=round_, client=client), tensors, tensors, kind, known)


def test_who_uses_all_rows_uses_the_same_ones() -> None:
    assert same_rows([seen(1), seen(2), seen(5)]) == [[0, 1, 2]]
    assert same_rows([]) == []


def test_rounds_come_in_their_order() -> None:
    assert same_rows([seen(5), seen(1), seen(2)]) == [[1, 2, 0]]


def test_who_draws_rows_is_alone_in_each_round() -> None:
    drawn = [seen(1, all_rows=False), seen(2), seen(3, all_rows=False), seen(4)]
    assert same_rows(drawn) == [[0], [1, 3], [2]]


def test_what_is_not_granted_is_not_known() -> None:
    assert same_rows([seen(1, all_rows=None), seen(2, all_rows=None)]) == [[0], [1]]


def test_a_cohort_is_drawn_anew() -> None:
    assert same_rows([seen(1, cohort=2), seen(2, cohort=2)]) == [[0], [1]]


def test_facts_that_contradict_one_another_tell_rows_apart() -> None:
    assert same_rows([seen(1), seen(2, num_examples=3), seen(3)]) == [[0, 2], [1]]
    assert same_rows([seen(1, labels=(1, 2)), seen(2, labels=(1, 3))]) == [[0], [1]]
    assert same_rows([seen(1, lengths=(4, 5)), seen(2, lengths=(4, 6))]) == [[0], [1]]
    assert same_rows([seen(1), seen(2, client=1), seen(3, kind="weights")]) == [[0], [1], [2]]
