"""FILM on a small language model that has seen the sentences, and what keeps it from working."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from attacks.base import Job, Reconstruction
from attacks.film.film import FILM
from fedsim.errors import CannotAttack
from fedsim.knowledge import Knowledge
from fedsim.store.capture import Observation
from fedsim.tasks.base import state
from tests.attacks.film.cases import QUICK, attack, task_of
from tests.attacks.victims import Victim, lines, tokens, trained

FROZEN: dict[str, object] = {"name": "freeze_embeddings"}


@pytest.fixture(scope="module")
def fresh() -> Victim:
    return trained("tiny-gpt2", 60)


@pytest.fixture(scope="module")
def gpt2(fresh: Victim) -> Victim:
    """A model that has seen the first six sentences again and again."""
    task, batch = fresh.task, fresh.task.encode(fresh.rows.take(list(range(6))))
    network = task.model(fresh.sent)
    optimizer = torch.optim.Adam(network.parameters(), lr=0.003)
    for _ in range(40):
        optimizer.zero_grad()
        task.loss(network, batch).backward()
        optimizer.step()
    return Victim(task, fresh.rows, state(network))


def shared(guess: Reconstruction, truth: list[int]) -> float:
    """Share of the pairs of neighbours of ``truth`` that the best guess has."""
    pairs = set(pairwise(truth))
    return max(len(pairs & set(pairwise(line))) / len(pairs) for line in lines(guess.guess))


def test_words_come_back_in_order(gpt2: Victim) -> None:
    with_bag, control = 0.0, 0.0
    for row in range(4):
        seen, truth = gpt2.capture([row])
        (line,) = lines(truth)
        guess = attack(gpt2, seen)
        assert tokens(guess.guess) <= tokens(truth)
        assert [len(line) for line in lines(guess.guess)] == [len(line)]
        assert guess.guess.labels.tolist() == [-1]
        assert guess.confidence == ("guess",)
        with_bag += shared(guess, line) / 4
        control += shared(attack(gpt2, seen, replace(QUICK, bag="none")), line) / 4
    assert with_bag > 0.6
    assert control < 0.3


def test_the_objective_is_the_score_of_what_is_found(gpt2: Victim) -> None:
    seen, _ = gpt2.capture([3])
    said: list[tuple[int, float, str | torch.Tensor]] = []
    job = Job(report=lambda step, objective, text: said.append((step, objective, text)))
    guess = attack(gpt2, seen, replace(QUICK, beta=0.0), job=job)
    labelled = replace(guess.guess, labels=guess.guess.inputs)
    network = gpt2.task.model(gpt2.sent)
    perplexity = float(gpt2.task.loss(network, labelled).detach().exp())
    assert guess.objective == pytest.approx(perplexity, rel=1e-4)
    assert said == [(1, guess.objective, task_of(gpt2).text(lines(guess.guess)[0]))]
    assert [(step, objective) for step, _, objective in guess.trace] == [(1, guess.objective)]


def test_several_sentences_of_a_batch(fresh: Victim) -> None:
    seen, truth = fresh.capture([4, 5, 6, 7])
    beams_alone = replace(QUICK, sentences=4, phrase_steps=0, token_steps=0)
    guessed = lines(attack(fresh, seen, beams_alone).guess)
    assert len({tuple(line) for line in guessed}) == len(guessed) == 4
    assert {token for line in guessed for token in line} <= tokens(truth)
    assert max(map(len, guessed)) <= max(map(len, lines(truth)))
    pairs = [pair for line in guessed for pair in pairwise(line[1:-1])]
    assert len(pairs) == len(set(pairs))  # no pair of words comes twice


def test_granted_lengths_are_kept(gpt2: Victim) -> None:
    seen, truth = gpt2.capture([4, 5, 6, 7])
    lengths = tuple(len(line) for line in lines(truth))
    seen = replace(seen, knowledge=Knowledge(num_examples=4, lengths=lengths))
    guess = attack(gpt2, seen, replace(QUICK, sentences=3))
    assert {len(line) for line in lines(guess.guess)} <= set(lengths)


def test_same_seed_same_guess(gpt2: Victim) -> None:
    seen, _ = gpt2.capture([4, 5])
    first, again = attack(gpt2, seen), attack(gpt2, seen)
    assert torch.equal(first.guess.inputs, again.guess.inputs)
    assert first.objective == again.objective


def test_the_control_looks_at_nothing(gpt2: Victim) -> None:
    (seen, _), (other, _) = gpt2.capture([3]), gpt2.capture([8], FROZEN)
    control = replace(QUICK, bag="none")
    first, second = (attack(gpt2, observation, control) for observation in (seen, other))
    assert torch.equal(first.guess.inputs, second.guess.inputs)
    assert first.guess.inputs.shape[1] <= 40


def test_an_expired_job_returns_what_it_has(gpt2: Victim) -> None:
    seen, _ = gpt2.capture([4, 5])
    guess = attack(gpt2, seen, replace(QUICK, sentences=5), job=Job(deadline=0.0))
    assert guess.expired
    assert guess.steps == len(guess.guess) == 1


def test_a_text_without_start_and_end(gpt2: Victim) -> None:
    whole = task_of(gpt2).tokenizer
    tokenizer = type(whole)(tokenizer_object=whole.backend_tokenizer)
    victim = Victim(replace(task_of(gpt2), tokenizer=tokenizer), gpt2.rows, gpt2.sent)
    seen, truth = victim.capture([3])
    (line,), (found,) = lines(truth), lines(attack(victim, seen).guess)
    assert 0 not in line
    assert task_of(victim).text(found)[0].isupper()
    # The last token leaves no trace, and where it is the full stop the guess may lack it.
    assert set(found) <= set(line)
    assert len(found) <= len(line)


def refused(victim: Victim, seen: Observation, film: FILM, reason: str) -> None:
    with pytest.raises(CannotAttack, match=re.escape(reason)):
        attack(victim, seen, film)


def test_what_film_cannot_attack(gpt2: Victim) -> None:
    seen, _ = gpt2.capture([3], FROZEN)
    refused(gpt2, seen, QUICK, "the client does not send the word embeddings (frozen)")
    assert len(attack(gpt2, seen, replace(QUICK, bag="none")).guess) == 1
    bert = trained("tiny-bert", 0)
    seen, _ = bert.capture([3])
    refused(bert, seen, QUICK, "'tiny-bert' is trained for text-classification")
    marked = {**gpt2.sent, "transformer.wte.weight": torch.zeros(2000, 128)}
    marked["transformer.wte.weight"][0] = 1.0
    alone = replace(gpt2.capture([3])[0], received=marked)
    refused(gpt2, alone, QUICK, "the bag holds special tokens only")
