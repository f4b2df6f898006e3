"""What is assumed of lengths and labels before the search."""

from collections import Counter
from dataclasses import replace
from itertools import permutations
from typing import Any

import pytest
import torch

from attacks.base import Job
from attacks.texts.text_group import Hypothesis, hypotheses
from fedsim.knowledge import Knowledge
from fedsim.store.capture import Observation
from fedsim.types import Batch
from tests.attacks.texts.cases import quick
from tests.attacks.victims import PLACE, Victim, lines


@pytest.fixture(scope="module")
def bert() -> Victim:
    return quick()


def assume(victim: Victim, seen: Observation, **facts: Any) -> list[Hypothesis]:
    known = Knowledge.model_validate({"num_examples": seen.knowledge.num_examples, **facts})
    rng = torch.Generator().manual_seed(0)
    network = victim.task.model(victim.sent)
    own = replace(seen, knowledge=known)
    return hypotheses(own, victim.task, network, rng, Job())


def pairs(found: list[Hypothesis]) -> list[list[tuple[int, int]]]:
    """Length and label of each sentence, sorted."""
    made = []
    for each in found:
        assert each.labels is not None
        made.append(sorted(zip(each.lengths, each.labels, strict=True)))
    return made


def test_what_is_granted_to_one_sentence_is_taken(bert: Victim) -> None:
    seen, truth = bert.capture([0])
    wrong = 1 - int(truth.labels)
    assert assume(bert, seen, lengths=(5,), labels=(wrong,)) == [Hypothesis((5,), (wrong,))]


@pytest.mark.parametrize(
    ("lengths", "labels"),
    [
        ((7, 9), (0, 1)),
        ((7, 7), (0, 1)),
        ((7, 9), (1, 1)),
        ((9, 7, 7), (0, 1, 1)),
        ((4, 5, 6), (2, 0, 1)),
        ((4, 4, 6, 6), (0, 0, 1, 1)),
    ],
)
def test_every_pairing_comes_once(
    bert: Victim, lengths: tuple[int, ...], labels: tuple[int, ...]
) -> None:
    seen, _ = bert.capture(list(range(len(lengths))))
    found = pairs(assume(bert, seen, lengths=lengths, labels=labels))
    expected = {tuple(sorted(zip(lengths, order, strict=True))) for order in permutations(labels)}
    assert len(found) == len(expected)
    assert {tuple(each) for each in found} == expected


def test_no_more_than_sixteen(bert: Victim) -> None:
    seen, _ = bert.capture([0, 1, 2, 3, 4, 5])
    assert len(assume(bert, seen, lengths=(4, 5, 6, 7, 8, 9), labels=(0, 0, 0, 1, 1, 1))) == 16


def test_labels_are_read_off_the_head(bert: Victim) -> None:
    for rows in ([0], [1], [0, 1], [2, 3, 4]):
        seen, truth = bert.capture(rows)
        lengths = tuple(map(len, lines(truth)))
        for own in pairs(assume(bert, seen, lengths=lengths)):
            assert Counter(label for _, label in own) == Counter(truth.labels.tolist())


NOISE: dict[str, object] = {"name": "gaussian_noise", "std": 1e-5}


@pytest.mark.parametrize("defense", [None, {"name": "sign"}, NOISE])
def test_the_position_rows_show_the_longest(
    bert: Victim, defense: dict[str, object] | None
) -> None:
    for row in range(8):
        seen, truth = bert.capture([row], *([defense] if defense else []))
        (hypothesis,) = assume(bert, seen, labels=(0,))
        assert hypothesis.lengths == (len(lines(truth)[0]),)
    seen, truth = bert.capture([0, 1, 2], *([defense] if defense else []))
    (hypothesis,) = assume(bert, seen, labels=(0, 0, 0))
    assert hypothesis.lengths == (max(map(len, lines(truth))),) * 3


def test_weights_show_them_too(bert: Victim) -> None:
    federation: dict[str, Any] = {"protocol": "fedavg", "learning_rate": 0.1, "local_steps": 2}
    seen, truth = bert.capture([1], **federation)
    (hypothesis,) = assume(bert, seen, labels=(0,))
    assert hypothesis.lengths == (len(lines(truth)[0]),)


def test_without_position_rows_all_lengths_are_tried(bert: Victim) -> None:
    frozen: dict[str, object] = {"name": "freeze_embeddings", "word": False, "position": True}
    seen, _ = bert.capture([0, 1], frozen)
    assert PLACE not in seen.received
    found = assume(bert, seen, labels=(0, 0))
    assert [each.lengths for each in found] == [(length,) * 2 for length in range(3, 13)]
    seen, _ = bert.capture([0, 1])
    silent = {**seen.received, PLACE: torch.zeros_like(seen.received[PLACE])}
    assert assume(bert, replace(seen, received=silent), labels=(0, 0)) == found


def test_rows_beyond_the_longest_sentence_tell_nothing(bert: Victim) -> None:
    seen, _ = bert.capture([0])
    loud = {**seen.received, PLACE: torch.ones_like(seen.received[PLACE])}
    assert len(assume(bert, replace(seen, received=loud), labels=(0,))) == 10


def test_targets_are_no_classes() -> None:
    victim = quick("masked-language-modelling", 0)
    seen, truth = victim.capture([0])
    assert isinstance(truth, Batch)
    length = len(lines(truth)[0])
    assert assume(victim, seen) == [Hypothesis((length,), None)]
