"""FILM with the evidence of the first block: whole batches, and what is said where it fails."""

from __future__ import annotations

import math
import os
import re
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from attacks.base import Job, Reconstruction
from attacks.film.bag import Bag
from attacks.film.evidence import SpanEvidence
from attacks.film.film import FILM
from attacks.film.likelihood import SoftEvidence, likeliest, read_likelihood
from attacks.tokens.attacked_model import AttackedModel
from fedsim.cell import TaskConfig
from fedsim.data.rows import load_rows
from fedsim.errors import CannotAttack
from fedsim.knowledge import Knowledge
from fedsim.tasks import initial_weights, make_task
from tests.attacks.film.cases import QUICK, attack, task_of
from tests.attacks.victims import Victim, lines, overlap, tokens, trained

SPAN = replace(QUICK, evidence="span")
BARE: dict[str, object] = {"name": "freeze_embeddings", "position": True}


@pytest.fixture(scope="module")
def fresh() -> Victim:
    return trained("tiny-gpt2", 60)


def sentences(guess: Reconstruction) -> Counter[tuple[int, ...]]:
    return Counter(map(tuple, lines(guess.guess)))


@pytest.mark.parametrize("defenses", [(), (BARE,)])
@pytest.mark.parametrize("rows", [[7], [20, 21, 22, 23]])
def test_evidence_makes_whole_batches_exact(
    fresh: Victim, rows: list[int], defenses: tuple[dict[str, object], ...]
) -> None:
    seen, truth = fresh.capture(rows, *defenses)
    for known in (len(rows), None):
        guess = attack(fresh, replace(seen, knowledge=Knowledge(num_examples=known)), SPAN)
        assert sentences(guess) == Counter(map(tuple, lines(truth)))
        assert guess.confidence == ("certified",) * len(rows)
        assert guess.note == ""
        assert guess.objective is not None
        assert guess.objective < 1e-5
        assert guess.steps == len(guess.trace) == 1


def test_without_evidence_the_batch_is_not_found(fresh: Victim) -> None:
    seen, truth = fresh.capture([20, 21, 22, 23])
    guess = attack(fresh, seen, replace(QUICK, sentences=4))
    assert not sentences(guess) & Counter(map(tuple, lines(truth)))


def test_sentences_that_repeat(fresh: Victim) -> None:
    seen, truth = fresh.capture([5, 9, 5], BARE)
    guess = attack(fresh, seen, SPAN)
    assert sentences(guess) == Counter(map(tuple, lines(truth)))
    assert guess.confidence == ("certified",) * 3


def test_the_span_gives_a_bag_of_its_own(fresh: Victim) -> None:
    seen, truth = fresh.capture([3], BARE)
    (line,) = lines(truth)
    guess = attack(fresh, seen, replace(QUICK, bag="span"))
    assert tokens(guess.guess) <= tokens(truth)
    assert guess.confidence == ("guess",)
    assert guess.note == ""
    assert [len(one) for one in lines(guess.guess)] == [len(line)]


def test_another_gradient_proves_nothing(fresh: Victim) -> None:
    seen, truth = fresh.capture([5, 9], BARE)
    other, _ = fresh.capture([6, 8], BARE)
    block = {name: value for name, value in seen.received.items() if ".0." in name}
    seen = replace(seen, received={**other.received, **block})
    guess = attack(fresh, seen, SPAN)
    assert sentences(guess) == Counter(map(tuple, lines(truth)))
    assert guess.confidence == ("in_span",) * 2
    guess = attack(fresh, replace(seen, knowledge=Knowledge(num_examples=3)), SPAN)
    assert sentences(guess) > Counter(map(tuple, lines(truth)))
    assert guess.confidence == ("in_span", "in_span", "guess")


def test_without_an_exact_span_likelihoods_rank(fresh: Victim) -> None:
    noise = {"name": "gaussian_noise", "std": 1e-4}
    seen, truth = fresh.capture([5], BARE, noise)
    guess = attack(fresh, seen, SPAN)
    assert re.match(r"Words by their likelihood, since the gradient .* has rank", guess.note)
    assert guess.confidence == ("guess",)
    assert overlap(guess, lines(truth)) > 0.7
    bag = attack(fresh, seen, replace(QUICK, bag="span"))
    assert bag.note == guess.note
    assert len(tokens(bag.guess) & tokens(truth)) > len(tokens(bag.guess)) / 2


class Doubt(SoftEvidence):
    """Evidence that speaks against each word, as that of a heavily pruned update does."""

    def of(self, ratios: Tensor, sentences: Tensor, words: Tensor) -> Tensor:
        return super().of(ratios, sentences, words) - 20


def test_evidence_against_all_words_does_not_end_a_sentence_early(fresh: Victim) -> None:
    seen, truth = fresh.capture([5], BARE, {"name": "gaussian_noise", "std": 1e-4})
    task, rng = task_of(fresh), torch.Generator().manual_seed(0)
    network = task.model(seen.sent)
    model = AttackedModel.of(seen, task, network)
    evidence, _ = read_likelihood(model, Job(), "")
    assert evidence is not None
    doubt = Doubt(**vars(evidence))
    grammar = SPAN._grammar(seen, task, Bag(evidence.words, None))
    guess = likeliest(doubt, task, network, grammar, SPAN.beams, rng, Job())
    assert overlap(guess, lines(truth)) > 0.7


def test_likelihoods_of_next_words(fresh: Victim) -> None:
    noise = {"name": "gaussian_noise", "std": 1e-4}
    seen, truth = fresh.capture([5], BARE, noise)
    task, rng = task_of(fresh), torch.Generator().manual_seed(0)
    network = task.model(seen.sent)
    model = AttackedModel.of(seen, task, network)
    evidence, _ = read_likelihood(model, Job(), "")
    assert evidence is not None
    assert bool((evidence.words.diff() > 0).all())
    (line,) = lines(truth)
    evidence.traces.grow(line[:1], 1, rng)
    prefixes = torch.tensor([line[:3], [line[0], *line[4:6]]])
    nats = evidence.of(evidence.traces.ratios, prefixes, evidence.words)
    assert nats.shape == (2, len(evidence.words))
    # Only behind its own beginning does the true word fit the layers behind the attention.
    place = evidence.words.tolist().index(line[3])
    assert int(nats[0].argmax()) == place
    assert float(nats[0, place]) > float(nats[1, place])
    none, note = read_likelihood(model, Job(deadline=0.0), "time is up")
    assert none is None
    assert note == "Ranked by log-probability alone, since time is up."


def test_without_room_in_the_span_it_says_so(fresh: Victim) -> None:
    many = list(range(40, 56))
    quick = replace(SPAN, phrase_steps=0, token_steps=0)
    seen, truth = fresh.capture(many)
    assert sum(map(len, lines(truth))) > 128
    guess = attack(fresh, seen, quick)
    assert re.match(r"Ranked by log-probability alone, since .* has rank 12[678] at", guess.note)
    assert guess.confidence == ("guess",)
    frozen, _ = fresh.capture(many, BARE)
    guess = attack(fresh, frozen, replace(quick, max_tokens=12))
    assert "All words, since the client does not send the word embeddings (frozen)" in guess.note
    with pytest.raises(CannotAttack, match="at width 128"):
        attack(fresh, seen, replace(quick, bag="span"))
    dropped, _ = fresh.capture([5], train_mode=True)
    guess = attack(fresh, dropped, quick)
    assert guess.note == "Words by their likelihood, since no sentence in the span was found."
    assert guess.confidence == ("guess",)


def test_without_any_evidence_log_probability_ranks(fresh: Victim) -> None:
    seen, _ = fresh.capture([5])
    first = [name for name in seen.received if ".0.attn.c_attn" in name]
    rest = {name: value for name, value in seen.received.items() if name not in first}
    guess = attack(fresh, replace(seen, received=rest), replace(SPAN, max_tokens=12))
    assert guess.note.startswith("Ranked by log-probability alone, since ")
    with pytest.raises(CannotAttack):
        attack(fresh, replace(seen, received=rest), replace(QUICK, bag="span"))


def test_evidence_takes_an_end_token(fresh: Victim) -> None:
    whole = task_of(fresh).tokenizer
    tokenizer = type(whole)(tokenizer_object=whole.backend_tokenizer)
    victim = Victim(replace(task_of(fresh), tokenizer=tokenizer), fresh.rows, fresh.sent)
    guess = attack(victim, victim.capture([3])[0], SPAN)
    assert "since the tokenizer of 'tiny-gpt2' has no end token" in guess.note


class Told:
    """A judge by a rule: words below 50 are in the span, and 70 and above far from it."""

    subspace = SimpleNamespace(basis=torch.zeros(1))

    def sines(self, ids: Tensor, lengths: Tensor) -> Tensor:
        return torch.where(ids < 50, 1e-3, 0.2 + ids / 100) * (torch.arange(ids.shape[1]) >= 0)

    def extensions(self, prefixes: Tensor, tokens: Tensor) -> Tensor:
        return self.sines(tokens[None], prefixes).expand(len(prefixes), -1)


def told(*tokens: list[int]) -> SpanEvidence:
    return SpanEvidence(cast(Any, Told()), [torch.tensor(t) for t in tokens], 0.01, ())


def test_words_in_the_span_shut_out_the_others() -> None:
    words = torch.tensor([3, 4, 60, 70, 80])
    evidence = told([0], [3, 60, 80], [60, 70, 80])
    assert evidence.words.tolist() == [0, 3, 60, 70, 80]
    assert evidence.longest == 4
    (nats,) = evidence.of(torch.tensor([[0]]), words).tolist()
    assert nats == pytest.approx([4.0, -math.inf, -math.inf, -math.inf, -math.inf])
    # Where none fits, the two nearest are tried for 100 nats, once.
    (nats,) = evidence.of(torch.tensor([[0, 3]]), words).tolist()
    assert nats[:2] == [-math.inf] * 2
    assert nats[2:4] == pytest.approx([-2 * math.log10(8) - 100, -2 * math.log10(9) - 100])
    assert nats[4] == -math.inf
    assert evidence.strays == {(0, 3, 60), (0, 3, 70)}
    after = evidence.of(torch.tensor([[0, 3, 60], [0, 3, 4]]), words)
    assert after[:, 0].tolist() == pytest.approx([4.0, 4.0])
    evidence.strays.add((0, 3, 60, 60))
    lost = evidence.of(torch.tensor([[0, 3, 60, 60]]), words)
    assert lost.tolist() == [[-math.inf] * 5]


def test_branches_of_a_sentence_are_doubted() -> None:
    end, body = 0, (1, 2, 3, 4, 5, 6)
    whole, short, weak = ((*body[:6], end), (*body[:3], end), (*body[:6], 60, end))
    ended = [(*body[:3], 60, end), short, weak, whole, (70, 80, 60, end)]
    found, doubtful = told([1]).accepted(ended)
    assert [one.ids for one in found] == [whole]
    assert [one.ids for one in doubtful] == [weak]
    assert told([1]).accepted([]) == ([], [])


def test_an_expired_search_by_evidence(fresh: Victim) -> None:
    seen, _ = fresh.capture([4, 5])
    guess = attack(fresh, seen, SPAN, job=Job(deadline=0.0))
    assert guess.expired
    assert guess.confidence == ("guess",)


@pytest.mark.slow
def test_enron_with_frozen_embeddings() -> None:
    if "FEDSIM_HUB" not in os.environ:
        pytest.skip("FEDSIM_HUB is not set: no fedsim/gpt2-8k and no Enron here")
    data = "film/enron-sentences"
    rows = load_rows(data, "train[:600]", modality="text")
    config = TaskConfig(model="fedsim/gpt2-8k", dataset=data, max_length=32)
    task = make_task(config, rows)
    victim = Victim(task, rows, initial_weights(task, config, 0))
    for batch in ([7], list(range(50, 58))):
        seen, truth = victim.capture(batch, BARE)
        guess = attack(victim, seen, FILM(evidence="span"))
        assert sentences(guess) == Counter(map(tuple, lines(truth)))
        assert guess.confidence == ("certified",) * len(batch)
