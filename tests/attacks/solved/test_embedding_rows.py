"""The words of trained text models, read off the rows of their embedding updates."""

import os
import re
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from attacks.base import Job
from attacks.observed.word_rows import noise_variance, without_decay
from attacks.prior_only import PriorOnly
from attacks.solved.embedding_rows import EmbeddingRows, arrangement, depths, sentence
from fedsim.config.cell import TaskConfig
from fedsim.data.rows import load_rows
from fedsim.errors import CannotAttack
from fedsim.knowledge import Knowledge
from fedsim.store.capture import Observation
from fedsim.tasks import initial_weights, make_task
from tests.attacks.victims import PLACE, WORD, Victim, lines, tokens


@pytest.mark.some(2)
@pytest.mark.parametrize("known", [1, None])
def test_one_sentence_in_order(bert: Victim, known: int | None) -> None:
    repeats = 0
    for row in range(12):
        seen, truth = bert.capture([row])
        guess = bert.attack(replace(seen, knowledge=Knowledge(num_examples=known)))
        assert lines(guess.guess) == lines(truth)
        assert torch.equal(guess.guess.labels, truth.labels)
        assert guess.confidence == ("certified",)
        assert guess.objective is not None
        assert guess.objective < 1e-3
        repeats += len(lines(truth)[0]) > len(tokens(truth))
    assert repeats  # at least one sentence repeats a token


def test_one_sentence_of_a_causal_model(gpt2: Victim) -> None:
    for row in range(12):
        seen, truth = gpt2.capture([row])
        guess = gpt2.attack(seen)
        assert lines(guess.guess) == lines(truth)  # the gradient tells the last token
        assert guess.guess.labels.tolist() == [-1]
        assert guess.confidence == ("certified",)


@pytest.mark.parametrize("model", ["bert", "gpt2"])
def test_rows_without_a_gradient_that_fits_prove_nothing(
    model: str, request: pytest.FixtureRequest
) -> None:
    victim = request.getfixturevalue(model)
    seen, truth = victim.capture([3])
    head = [name for name in seen.received if "classifier" in name or "ln_f" in name]
    other = {name: -seen.received[name] for name in head}
    guess = victim.attack(replace(seen, received={**seen.received, **other}))
    assert lines(guess.guess) == [lines(truth)[0][: len(lines(guess.guess)[0])]]
    assert guess.confidence == ("in_span",)


@pytest.mark.parametrize("known", [8, None])
def test_token_set_of_a_padded_batch(bert: Victim, known: int | None) -> None:
    seen, truth = bert.capture(list(range(20, 28)))
    assert truth.mask is not None
    assert truth.mask.min() == 0
    guess = bert.attack(replace(seen, knowledge=Knowledge(num_examples=known)))
    assert tokens(guess.guess) == tokens(truth)
    assert len(guess.guess) == 8 or known is None
    assert set(guess.confidence or ()) == {"guess"}
    assert guess.objective is None
    assert guess.guess.labels.tolist() == [-1] * len(guess.guess)


def test_token_set_of_a_causal_model(gpt2: Victim) -> None:
    seen, truth = gpt2.capture([3, 4])
    guess = gpt2.attack(seen)
    assert tokens(guess.guess) == {token for line in lines(truth) for token in line[:-1]}


def test_known_lengths_shape_the_guess(bert: Victim) -> None:
    seen, truth = bert.capture([20, 21, 22])
    lengths = [len(line) for line in lines(truth)]
    assert len(set(lengths)) > 1
    knowledge = Knowledge(num_examples=3, lengths=tuple(lengths))
    guess = bert.attack(replace(seen, knowledge=knowledge))
    assert sorted(map(len, lines(guess.guess))) == sorted(lengths)


SGD = {"protocol": "fedavg", "learning_rate": 0.01, "local_steps": 3}
ADAM = {**SGD, "learning_rate": 1e-4}


@pytest.mark.some(6)
@pytest.mark.parametrize(
    ("defenses", "federation"),
    [
        ([{"name": "sign"}], {}),
        ([{"name": "sign", "scale": "mean"}], {}),
        ([{"name": "prune", "fraction": 0.9}], {}),
        ([{"name": "prune", "fraction": 0.9, "scope": "tensor"}], {}),
        ([{"name": "gaussian_noise", "std": 1e-6}], {}),
        ([], {"train_mode": True}),
        ([], SGD),
        ([], {**SGD, "optimizer": "momentum"}),
        ([], {**SGD, "weight_decay": 0.01}),
        ([], {**ADAM, "optimizer": "adam"}),
        ([], {**ADAM, "optimizer": "adamw", "weight_decay": 0.01}),
    ],
)
def test_token_set_survives(
    bert: Victim, defenses: list[dict[str, object]], federation: dict[str, Any]
) -> None:
    for rows in ([5], [30, 31, 32, 33]):
        seen, truth = bert.capture(rows, *defenses, **federation)
        guess = bert.attack(seen)
        assert tokens(guess.guess) == tokens(truth)
        # Global pruning takes other coordinates of a repeated token than of its positions.
        if len(rows) == 1 and {"name": "prune", "fraction": 0.9} not in defenses:
            assert lines(guess.guess) == lines(truth)


def test_lost_tokens_are_not_certified(bert: Victim) -> None:
    lost = 0
    for row in range(6):
        seen, truth = bert.capture([row], {"name": "prune", "fraction": 0.995})
        guess = bert.attack(seen)
        assert tokens(guess.guess) <= tokens(truth)
        assert guess.confidence == ("guess",)
        lost += tokens(guess.guess) < tokens(truth)
    assert lost


def test_no_order_without_position_embeddings(bert: Victim) -> None:
    frozen = {"name": "freeze_embeddings", "word": False, "position": True}
    for rows in ([5], [5, 6, 7]):
        seen, truth = bert.capture(rows, frozen)
        guess = bert.attack(seen)
        assert tokens(guess.guess) == tokens(truth)
        assert guess.confidence == ("guess",) * len(rows)
        assert sum(map(len, lines(guess.guess))) == len(tokens(truth))


def test_label_is_granted_or_unknown(bert: Victim) -> None:
    seen, truth = bert.capture([5])
    received = {k: v for k, v in seen.received.items() if not k.startswith("classifier")}
    headless = replace(seen, received=received)
    assert bert.attack(headless).guess.labels.tolist() == [-1]
    granted = Knowledge(num_examples=1, labels=tuple(truth.labels.tolist()))
    guess = bert.attack(replace(headless, knowledge=granted))
    assert torch.equal(guess.guess.labels, truth.labels)


def refused(victim: Victim, seen: Observation, reason: str) -> None:
    with pytest.raises(CannotAttack, match=re.escape(reason)):
        victim.attack(seen)


def test_frozen_word_embeddings(bert: Victim, gpt2: Victim) -> None:
    frozen = "the client does not send the word embeddings (frozen)"
    refused(bert, bert.capture([0], {"name": "freeze_embeddings"})[0], f"{frozen}; the reply has")
    refused(
        gpt2, gpt2.capture([0], {"name": "freeze_embeddings"})[0], "no 'transformer.wte.weight'"
    )


def test_unreadable_rows(bert: Victim) -> None:
    seen, _ = bert.capture([0])
    still = {**seen.received, WORD: torch.zeros_like(seen.received[WORD])}
    refused(bert, replace(seen, received=still), "0 rows of the word embeddings")
    broken = {**seen.received, PLACE: torch.full_like(seen.received[PLACE], torch.nan)}
    refused(bert, replace(seen, received=broken), f"{PLACE!r} holds NaN or infinite values")
    many = {**seen.received, WORD: seen.received[WORD].clone()}
    many[WORD][:500] = 1.0
    refused(bert, replace(seen, received=many), "the batch holds 1 to 32 tokens")


def test_tied_head_without_a_span(gpt2: Victim) -> None:
    noisy, truth = gpt2.capture([0], {"name": "gaussian_noise", "std": 1e-5})
    refused(gpt2, noisy, "the tied head span 128 dimensions, and words show in at most 127")
    signs, _ = gpt2.capture([0], {"name": "sign"})
    refused(gpt2, signs, f"words show in at most {len(lines(truth)[0]) - 1}.")


def test_no_row_of_noise_alone_counts(bert: Victim) -> None:
    rng = torch.Generator().manual_seed(0)
    seen, truth = bert.capture([0])
    noisy = {k: v + 1e-4 * torch.randn(v.shape, generator=rng) for k, v in seen.received.items()}
    seen = replace(seen, received=noisy, knowledge=Knowledge())
    assert noise_variance(noisy[WORD].double()) == pytest.approx(1e-8, rel=0.05)
    shown = tokens(bert.attack(seen).guess)
    assert shown
    assert not shown - tokens(truth)


def table(rows: int, width: int = 32) -> Tensor:
    rng = torch.Generator().manual_seed(3)
    return torch.randn(rows, width, generator=rng, dtype=torch.float64)


def test_sentence_solves_the_incidence() -> None:
    positions, order = table(6), [2, 0, 1, 0, 3, 0]
    words = torch.zeros(4, 32, dtype=torch.float64)
    words.index_add_(0, torch.tensor(order), positions)
    found, miss = sentence(words, positions)
    assert found == order
    assert miss < 1e-12
    # A word whose position is hidden comes last, and the arrangement explains nothing.
    found, miss = sentence(words, positions[:4])
    assert found == [2, 0, 1, 0, 3]
    assert miss > 0.1
    assert sentence(words[:, :5], positions[:, :5])[1] == float("inf")


def test_arrangement_puts_unique_words_in_place() -> None:
    shares = table(5)
    words, positions = (
        shares,
        torch.stack([shares[0] + shares[1], shares[2] + shares[3], shares[4]]),
    )
    for count, lengths in ((2, None), (None, None), (2, [3, 2])):
        order = arrangement(words, positions, count, lengths)
        assert [sorted(line[p] for line in order if len(line) > p) for p in range(3)] == [
            [0, 1],
            [2, 3],
            [4],
        ]
    assert arrangement(words, positions[:0], 2, None) == [[0, 2, 4], [1, 3]]
    assert depths(torch.zeros(4, 2), None, [4, 1, 2]).tolist() == [3, 2, 1, 1]


def test_decay_is_taken_out() -> None:
    before, moved = table(9).float(), torch.zeros(9, 32)
    moved[4] = 0.01
    update = {"word": (0.001 * before + moved).double()}
    rest = without_decay(update, "word", {"word": before})["word"]
    assert rest.norm(dim=1).nonzero().tolist() == [[4]]
    torch.testing.assert_close(rest, moved.double(), atol=1e-6, rtol=0)


@pytest.fixture
def minilm() -> Victim:
    if "FEDSIM_HUB" not in os.environ:
        pytest.skip("FEDSIM_HUB is not set: no MiniLM and no CoLA here")
    model, data = "sentence-transformers/all-MiniLM-L6-v2", "nyu-mll/glue:cola"
    rows = load_rows(data, "train[:400]", modality="text")
    config = TaskConfig(model=model, dataset=data)
    task = make_task(config, rows)
    return Victim(task, rows, initial_weights(task, config, 0))


@pytest.mark.slow
def test_minilm_on_cola(minilm: Victim) -> None:
    for row in range(0, 140, 7):
        seen, truth = minilm.capture([row])
        guess = minilm.attack(seen)
        assert lines(guess.guess) == lines(truth)
        assert guess.confidence == ("certified",)
    for first in (200, 208):
        seen, truth = minilm.capture(list(range(first, first + 8)))
        assert tokens(minilm.attack(seen).guess) == tokens(truth)


def test_declared_noise_is_not_estimated_on_the_rows(bert: Victim) -> None:
    """Where most rows of a table are of the batch, the median row is no noise."""
    noise = {"name": "gaussian_noise", "std": 1e-6}
    seen, truth = bert.capture([5, 6, 7], noise)
    known = seen.knowledge.model_copy(update={"defense": (noise,)})
    granted = replace(seen, knowledge=known)
    adaptive = EmbeddingRows(adaptive=True)
    assert adaptive._declared(granted) == pytest.approx(1e-12, rel=0.05)
    rng = torch.Generator()
    (guess,) = adaptive.reconstruct([granted], bert.task, [rng], Job())
    assert tokens(guess.guess) == tokens(truth)
    secret = replace(granted, knowledge=known.model_copy(update={"defense": None}))
    with pytest.raises(CannotAttack, match="needs the client's defense"):
        adaptive.reconstruct([secret], bert.task, [rng], Job())


HIDING = {"name": "gaussian_noise", "std": 10.0}


@pytest.mark.parametrize("std", [10.0, 0.003])  # the weaker leaves the start token's row
def test_who_is_told_of_noise_that_hides_all_words_guesses_as_blindly_as_anyone(
    bert: Victim, std: float
) -> None:
    noise = {"name": "gaussian_noise", "std": std}
    seen, _ = bert.capture([5], noise)
    granted = replace(seen, knowledge=seen.knowledge.model_copy(update={"defense": (noise,)}))
    rng, adaptive = torch.Generator(), EmbeddingRows(adaptive=True)
    (guess,) = adaptive.reconstruct([granted], bert.task, [rng], Job())
    (blind,) = PriorOnly().reconstruct([granted], bert.task, [rng], Job())
    assert tokens(guess.guess) == tokens(blind.guess)
    assert "the most frequent words" in guess.note
    with pytest.raises(CannotAttack, match="0 rows of the word embeddings stand out"):
        EmbeddingRows().reconstruct([bert.capture([5], HIDING)[0]], bert.task, [rng], Job())
