"""Sentences of an encoder decoded from updates that a defense has blurred."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from attacks.base import Job
from attacks.observed.readings import read
from attacks.spans.decoding import decode
from attacks.spans.encoder_decoding import left
from attacks.spans.rematch import Rematch
from attacks.spans.word_search import Places
from fedsim.knowledge import Knowledge
from fedsim.tasks.text import TextTask
from fedsim.types import Batch
from tests.attacks.solved.test_embedding_rows import Victim, lines, trained

FROZEN: dict[str, object] = {"name": "freeze_embeddings", "position": True}
SIGNS: dict[str, object] = {"name": "sign"}
NOISE: dict[str, object] = {"name": "gaussian_noise", "std": 1e-8}


@pytest.fixture(scope="module")
def bert() -> Victim:
    return trained("tiny-bert", 30)


def decoded(victim: Victim, rows: list[int], *defenses: dict[str, object]) -> tuple[Batch, Batch]:
    seen, truth = victim.capture(rows, FROZEN, *defenses)
    task = victim.task
    assert isinstance(task, TextTask)
    seen = replace(seen, knowledge=Knowledge(num_examples=len(rows)))
    network = task.model(seen.sent)
    guess = decode(seen, task, network, torch.Generator().manual_seed(0), Job(), rows=True)
    assert guess is not None
    return guess.guess, truth


@pytest.mark.parametrize("defenses", [(), (NOISE,)])
@pytest.mark.parametrize("row", [3, 17])
def test_a_sentence_and_its_class(
    bert: Victim, row: int, defenses: tuple[dict[str, object], ...]
) -> None:
    guess, truth = decoded(bert, [row], *defenses)
    assert lines(guess) == lines(truth)
    assert guess.labels.tolist() == truth.labels.tolist()


def test_words_and_class_of_signs(bert: Victim) -> None:
    guess, truth = decoded(bert, [17], SIGNS)
    words, own = (set(lines(batch)[0][1:-1]) for batch in (guess, truth))
    # None of 18 random words of a vocabulary of 2000 would be among them.
    assert len(words & own) >= 4
    assert guess.labels.tolist() == truth.labels.tolist()


def test_as_many_sentences_as_the_batch_has(bert: Victim) -> None:
    guess, truth = decoded(bert, [3, 4])
    assert len(guess) == 2
    words, own = ({w for line in lines(batch) for w in line} for batch in (guess, truth))
    assert len(words & own) >= 10


def test_nothing_is_left_of_the_whole_batch(bert: Victim) -> None:
    seen, truth = bert.capture([3, 4], FROZEN)
    task = bert.task
    assert isinstance(task, TextTask)
    network = task.model(seen.sent)
    update = {name: value.float() for name, value in seen.update().items()}
    rest = left(update, task, network, lines(truth), truth.labels.tolist())
    size = sum(float(value.square().sum()) for value in update.values())
    assert sum(float(value.square().sum()) for value in rest.values()) < 1e-6 * size


def test_every_measure_prefers_the_truth(bert: Victim) -> None:
    seen, truth = bert.capture([5], FROZEN)
    task = bert.task
    assert isinstance(task, TextTask)
    false = truth.inputs.clone()
    false[0, 1] = (false[0, 1] + 1) % 20 + 5
    both = torch.cat([truth.inputs, false])
    for signs in (False, True):
        match = Rematch.of(seen, task, torch.device("cpu"), signs=signs)
        own, other = match.similarity(both, truth.labels.expand(2)).tolist()
        assert own > other


def test_the_place_of_a_token_is_where_it_is_nearer_than_elsewhere() -> None:
    # Token 2 is nearest everywhere, and token 3 nearer at place 1 than at place 2.
    statistics = torch.full((4, 6), 9.0)
    statistics[:, 2] = torch.tensor([1.0, 1.0, 0.5, 1.0])
    statistics[:, 3] = torch.tensor([2.0, 1.2, 2.0, 2.0])
    statistics[:, 5] = torch.tensor([5.0, 5.0, 5.0, 3.0])
    places = Places(statistics, 4, 5)
    assert places.starts(4).tolist() == [[4, 3, 2, 5], [4, 2, 2, 5]]
    assert places.lengths([2, 3, 4], 1) == [4]


def test_int8_of_a_heavy_tail_is_not_read_as_signs() -> None:
    value = torch.randint(-1, 2, (40, 40), generator=torch.Generator().manual_seed(0)).float()
    value[0, 0] = 127.0
    assert read(value).complete
