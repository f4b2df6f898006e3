"""Moves of phrases and words, and the score that they are judged by."""

from collections.abc import Sequence
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from attacks.film.phrases import Fluency, Links, Phrases, TokenIds, Words, improve
from tests.attacks.victims import Victim, lines

NAME = "transformer.h.0.ln_2.weight"


def sentences(victim: Victim, *rows: int) -> list[TokenIds]:
    return [tuple(line) for line in lines(victim.task.encode(victim.rows.take(list(rows))))]


def test_fluency_is_perplexity_and_a_gradient_norm(gpt2: Victim) -> None:
    texts = sentences(gpt2, 0, 1, 2)
    assert len(set(map(len, texts))) > 1
    network = gpt2.task.model(gpt2.sent)
    expected = []
    for row in range(3):
        batch = gpt2.task.encode(gpt2.rows.take([row]))
        loss = gpt2.task.loss(network, batch).detach()
        norm = gpt2.task.gradient(network, batch)[NAME].norm()
        expected.append((float(loss.exp()), float(norm)))
    for beta in (0.0, 1.0, 300.0):
        scores = Fluency(gpt2.task.model(gpt2.sent), beta)(texts)
        sums = [perplexity + beta * norm for perplexity, norm in expected]
        assert scores.tolist() == pytest.approx(sums, rel=1e-4)
    # A perplexity above the limit is not worth a gradient.
    limit = sum(sorted(perplexity for perplexity, _ in expected)[:2]) / 2
    scores = Fluency(gpt2.task.model(gpt2.sent), 300.0)(texts, limit)
    for score, (perplexity, norm) in zip(scores.tolist(), expected, strict=True):
        worth = perplexity + 300 * norm if perplexity < limit else perplexity
        assert score == pytest.approx(worth, rel=1e-4)


def test_links_of_a_new_order() -> None:
    # Cuts before tokens 1, 3, 4 and 6; the link from cut 3 to cut 0, and so on, is worth 10.
    gains = torch.zeros(4, 4)
    gains[0, 1] = gains[2, 0] = gains[1, 2] = 10.0
    links = Links((1, 3, 4, 6), gains)
    text = (0, 11, 12, 13, 14, 15, 16)
    rng = torch.Generator().manual_seed(0)
    made = links.rearranged(text, 3, 64, rng)
    assert (0, 13, 11, 12, 14, 15, 16) in made  # the two pieces of the best three links
    assert len(made) == 4  # one for each three of the four cuts
    for new in made:
        assert sorted(new) == sorted(text)
        assert new != text
    best = Links((1, 3, 4, 6), gains).rearranged(text, 4, 1, rng)
    assert len(best) == 1


def test_phrases_keep_words_whole(gpt2: Victim) -> None:
    (text,) = sentences(gpt2, 3)
    network, rng = gpt2.task.model(gpt2.sent), torch.Generator().manual_seed(0)
    begins = set(text[2::3]) | {text[-1]}
    phrases = Phrases(network, lambda token: token in begins, 1)
    made = [new for step in range(12) for new in phrases(text, step, 16, rng)]
    assert made
    pairs = {(a, b) for a, b in pairwise(text) if b not in begins}
    for new in made:
        assert sorted(new) == sorted(text)
        assert (new[0], new[-1]) == (text[0], text[-1])
        assert {pair for pair in pairs if pair[0] != text[0]} <= set(pairwise(new))
    assert phrases(text[:2], 0, 16, rng) == []


def test_moves_of_words() -> None:
    rng = torch.Generator().manual_seed(0)
    text, bag = (0, 5, 6, 7, 0), torch.tensor([8, 9])
    made = Words(bag, lambda length: 3 <= length <= 6, (1, 1))(text, 0, 200, rng)
    assert {len(new) for new in made} == {4, 5, 6}
    assert all(new[0] == new[-1] == 0 and 0 not in new[1:-1] for new in made)
    assert {new for new in made if len(new) == 4} == {(0, 6, 7, 0), (0, 5, 7, 0), (0, 5, 6, 0)}
    assert all(set(new) & {8, 9} for new in made if len(new) == 6)
    swaps = Words(bag, lambda length: length == 5, (1, 1))(text, 0, 50, rng)
    assert {(0, 6, 5, 7, 0), (0, 7, 6, 5, 0), (0, 5, 7, 6, 0)} == set(swaps)
    assert Words(bag, lambda _: False, (1, 1))((0, 5, 0), 0, 9, rng) == []


def test_improve_sorts_by_the_score() -> None:
    asked: list[TokenIds] = []

    def disorder(texts: Sequence[TokenIds], limit: float) -> Tensor:
        del limit
        asked.extend(texts)
        pairs = [sum(a > b for i, a in enumerate(t) for b in t[i + 1 :]) for t in texts]
        return torch.tensor([float(p) for p in pairs])

    moves = Words(torch.tensor([1]), lambda length: length == 6, (0, 0))
    rng = torch.Generator().manual_seed(0)
    best, lowest = improve(
        (6, 2, 5, 1, 4, 3), disorder, moves, steps=50, patience=5, count=8, rng=rng
    )
    assert (best, lowest) == ((1, 2, 3, 4, 5, 6), 0.0)
    assert len(asked) == len(set(asked))
    best, lowest = improve(
        (2, 1), disorder, moves, steps=9, patience=9, count=1, rng=rng, expired=lambda: True
    )
    assert (best, lowest) == ((2, 1), 1.0)


def test_a_shuffled_sentence_comes_back(gpt2: Victim) -> None:
    network = gpt2.task.model(gpt2.sent)
    score, rng = Fluency(network, 1.0), torch.Generator().manual_seed(1)
    (text,) = sentences(gpt2, 2)
    mixed = [text[1 + i] for i in torch.randperm(len(text) - 2, generator=rng).tolist()]
    start = (text[0], *mixed, text[-1])
    words = Words(torch.tensor([5]), lambda length: length == len(text), (1, 1))
    found, lowest = start, float("inf")
    for moves in (Phrases(network, lambda _: True, 1), words):
        found, lowest = improve(found, score, moves, steps=40, patience=20, count=32, rng=rng)
    before = float(score([start]))
    assert lowest < before / 2
    assert lowest == pytest.approx(float(score([found])), rel=1e-4)
