"""The beam search with its cache and its part of the head against one without either."""

from __future__ import annotations

import os
import time
from collections import Counter
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

from attacks.base import Job
from attacks.film.film import Grammar, search
from fedsim.config.cell import TaskConfig
from fedsim.data.rows import load_rows
from fedsim.tasks import initial_weights, make_task
from tests.attacks.victims import Victim, lines

END = 0


def grammar(victim: Victim, rows: list[int], *, single: bool = False) -> Grammar:
    """The words of these rows; a sentence is at most as long as theirs, or exactly."""
    sentences = lines(victim.task.encode(victim.rows.take(rows)))
    longest = max(map(len, sentences))
    may_end = torch.arange(longest + 1) >= (longest if single else 3)
    words = torch.tensor(sorted({token for line in sentences for token in line} - {END}))
    nothing = torch.zeros(0, 2, dtype=torch.int64)
    return Grammar(words, torch.tensor([[END]]), may_end, END, 2, nothing)


@torch.no_grad()
def plain_search(
    network: nn.Module, grammar: Grammar, width: int
) -> list[tuple[tuple[int, ...], float]]:
    """All texts anew for each token, all logits, one beam after another."""
    beams: list[tuple[tuple[int, ...], float]] = [((END,), 0.0)]
    done = []
    while len(beams[0][0]) < grammar.longest:
        texts = torch.tensor([text for text, _ in beams])
        logits: Tensor = network(input_ids=texts, attention_mask=torch.ones_like(texts)).logits
        logs = logits.log_softmax(2)[:, -1].tolist()
        longer = []
        for (text, score), log in zip(beams, logs, strict=True):
            if grammar.may_end[len(text) + 1]:
                done.append(((*text, END), (score + log[END]) / len(text)))
            pairs = Counter([*pairwise(text), *map(tuple, grammar.banned.tolist())])
            for word in grammar.words.tolist():
                cost = 1000.0 * pairs[text[-1], word]
                longer.append(((*text, word), score + log[word] - cost))
        beams = sorted(longer, key=lambda beam: -beam[1])[:width]
    return sorted(done, key=lambda found: -found[1])


@pytest.mark.parametrize("rows", [[3], [4, 5, 6]])
def test_same_sentences_as_a_plain_search(gpt2: Victim, rows: list[int]) -> None:
    network = gpt2.task.model(gpt2.sent)
    rules = grammar(gpt2, rows, single=len(rows) == 1)
    banned = torch.tensor([[int(rules.words[0]), int(rules.words[1])]])
    for changed in (rules, replace(rules, banned=banned)):
        searched = search(network, changed, 8, Job())
        expected = plain_search(network, changed, 8)
        assert [f.ids for f in searched] == [tokens for tokens, _ in expected]
        scores = [score for _, score in expected]
        assert [f.score for f in searched] == pytest.approx(scores, abs=1e-4)


def test_repeats_are_counted() -> None:
    nothing = torch.zeros(0, 2, dtype=torch.int64)
    words = torch.tensor([2, 5, 7])
    rules = Grammar(words, torch.zeros(1, 1), torch.ones(9) > 0, 0, 2, nothing)
    texts = torch.tensor([[0, 2, 5, 2, 5, 2], [0, 5, 5, 5, 7, 5]])
    assert rules.repeats(texts).tolist() == [[0, 2, 0], [0, 2, 1]]
    banned = replace(rules, banned=torch.tensor([[2, 7], [5, 2], [5, 9]]))
    assert banned.repeats(texts).tolist() == [[0, 2, 1], [1, 2, 1]]
    assert replace(rules, ngram=0).repeats(texts).tolist() == [[0, 0, 0], [0, 0, 0]]
    single = replace(rules, ngram=1, banned=nothing[:, :1])
    assert single.repeats(texts).tolist() == [[3, 2, 0], [0, 4, 1]]
    long = replace(rules, ngram=4, banned=nothing.repeat(1, 2))
    assert long.repeats(texts).tolist() == [[0, 1, 0], [0, 0, 0]]
    assert long.repeats(texts[:, :2]).tolist() == [[0, 0, 0], [0, 0, 0]]


def test_no_end_token(gpt2: Victim) -> None:
    rules = grammar(gpt2, [3])
    starts = rules.words[:4, None]
    searched = search(gpt2.task.model(gpt2.sent), replace(rules, end=None, starts=starts), 8, Job())
    assert len(searched) == 8
    assert {len(f.ids) for f in searched} == {rules.longest}
    assert {f.ids[0] for f in searched} <= set(starts[:, 0].tolist())
    assert [f.score for f in searched] == sorted((f.score for f in searched), reverse=True)


def test_an_expired_search_returns_what_it_has(gpt2: Victim) -> None:
    network, job = gpt2.task.model(gpt2.sent), Job()
    with job.limited(network, 9):  # one token first, then eight prefixes
        searched = search(network, grammar(gpt2, [3], single=True), 8, job)
    assert {len(f.ids) for f in searched} == {3}


@pytest.mark.slow
def test_five_times_faster_than_a_plain_search() -> None:
    if "FEDSIM_HUB" not in os.environ:
        pytest.skip("FEDSIM_HUB is not set: no fedsim/gpt2-8k and no Enron here")
    rows = load_rows("film/enron-sentences", "train[:40]", modality="text")
    config = TaskConfig(model="fedsim/gpt2-8k", dataset="film/enron-sentences")
    task = make_task(config, rows)
    victim = Victim(task, rows, initial_weights(task, config, 0))
    network, spent = task.model(victim.sent), [0.0, 0.0]
    for first in (0, 16):
        rules = grammar(victim, list(range(first, first + 16)))
        start = time.process_time()
        searched = search(network, rules, 32, Job())[0]
        spent[0] += time.process_time() - start
        start = time.process_time()
        expected = plain_search(network, rules, 32)[0]
        spent[1] += time.process_time() - start
        assert searched.ids == expected[0]
    assert spent[1] > 5 * spent[0]
