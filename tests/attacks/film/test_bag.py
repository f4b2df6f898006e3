"""The words and lengths that the embedding rows of a trained language model give away."""

import re
from dataclasses import replace
from typing import Any

import pytest
import torch

from attacks.film.bag import BagRule, far_from_head, read_bag
from attacks.observed.declared import granted_noise
from fedsim.errors import CannotAttack
from fedsim.knowledge import Knowledge
from fedsim.store.capture import Observation
from fedsim.tasks.base import Task, state
from fedsim.types import Batch
from tests.attacks.victims import KEY, Victim, lines, tokens

WORD, PLACE = "transformer.wte.weight", "transformer.wpe.weight"
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def untied(gpt2: Victim) -> Victim:
    """The same model with a head of its own, which starts as a copy of the embeddings."""
    architecture = {**gpt2.task.spec.architecture, "tie_word_embeddings": False}
    spec = gpt2.task.spec.model_copy(update={"architecture": architecture})
    task: Task = replace(gpt2.task, spec=spec)
    sent = {**state(task.build()), **gpt2.sent, "lm_head.weight": gpt2.sent[WORD].clone()}
    return Victim(task, gpt2.rows, sent)


def read(victim: Victim, seen: Observation, rule: BagRule = "auto") -> tuple[set[int], int | None]:
    bag = read_bag(seen, victim.task.build(), rule, CPU)
    assert bag.words.tolist() == sorted(bag.words.tolist())
    return set(bag.words.tolist()), bag.longest


def seen_tokens(truth: Batch) -> set[int]:
    """All tokens but each sentence's last, which predicts nothing."""
    return {token for line in lines(truth) for token in line[:-1]}


@pytest.mark.parametrize("rows", [[5], [6, 7, 8, 9]])
def test_rows_of_an_untied_table(untied: Victim, rows: list[int]) -> None:
    seen, truth = untied.capture(rows)
    expected = (seen_tokens(truth), max(map(len, lines(truth))))
    assert read(untied, seen) == expected


@pytest.mark.parametrize("rows", [[5], [6, 7, 8, 9]])
def test_rows_of_a_tied_table(gpt2: Victim, rows: list[int]) -> None:
    seen, truth = gpt2.capture(rows)
    assert read(gpt2, seen) == (seen_tokens(truth), max(map(len, lines(truth))))


def test_more_predicted_tokens_than_dimensions(gpt2: Victim) -> None:
    seen, truth = gpt2.capture(list(range(24)))
    inputs = sum(len(line) - 1 for line in lines(truth))
    assert inputs > 2 * seen.received[WORD].shape[1]
    found, expected = read(gpt2, seen)[0], seen_tokens(truth)
    assert len(found & expected) > 0.97 * len(expected)
    assert len(found & expected) > 0.8 * len(found)


def test_far_from_head_finds_what_is_added() -> None:
    rng = torch.Generator().manual_seed(0)
    hidden = torch.randn(64, 16, generator=rng, dtype=torch.float64) * 0.5 ** torch.arange(16)
    shares = torch.randn(500, 64, generator=rng, dtype=torch.float64).mul(3).softmax(0)
    table = shares @ hidden
    assert not far_from_head(table).any()
    table[40:44] += 0.1 * torch.randn(4, 16, generator=rng, dtype=torch.float64)
    assert far_from_head(table).nonzero()[:, 0].tolist() == [40, 41, 42, 43]


@pytest.mark.parametrize("granted", [True, False])
def test_rows_under_noise(untied: Victim, granted: bool) -> None:
    noise = {"name": "gaussian_noise", "std": 1e-5}
    seen, truth = untied.capture([6, 7, 8, 9], noise)
    if granted:
        seen = replace(seen, knowledge=Knowledge(num_examples=4, defense=(noise,)))
    expected = (seen_tokens(truth), max(map(len, lines(truth))))
    assert read(untied, seen) == expected
    # The published bound is met by chance in most of the 2000 noisy rows: no union over them.
    published = read(untied, seen, "noise")[0]
    assert seen_tokens(truth) < published
    assert 100 < len(published - seen_tokens(truth)) < 600


def test_a_tied_table_under_noise(gpt2: Victim) -> None:
    seen, truth = gpt2.capture([6, 7, 8, 9], {"name": "gaussian_noise", "std": 1e-4})
    found = read(gpt2, seen)[0]
    assert len(found & seen_tokens(truth)) > 0.8 * len(seen_tokens(truth))
    # Rows of plausible words, full of the head's gradient, stand out of the noise as well.
    assert len(found) < len(seen.received[WORD]) / 2


def noise_of(*defense: dict[str, Any], weights: bool = False, **facts: Any) -> float | None:
    kind: Any = "weights" if weights else "gradient"
    knowledge = Knowledge(defense=defense, **facts)
    return granted_noise(Observation(KEY, {}, {}, kind, knowledge))


def test_granted_noise_is_in_units_of_the_update() -> None:
    gaussian = {"name": "gaussian_noise", "std": 0.5}
    dp_sgd = {"name": "dp_sgd", "clip": 2.0, "noise_multiplier": 0.6}
    assert noise_of() == noise_of({"name": "prune", "fraction": 0.9}) == 0
    assert noise_of(gaussian) == noise_of(gaussian, weights=True) == pytest.approx(0.5, rel=0.05)
    sample = {**gaussian, "stage": "sample"}
    assert noise_of(sample, num_examples=16) == pytest.approx(0.5 / 4, rel=0.05)
    assert noise_of(dp_sgd, batch_size=8) == pytest.approx(0.6 * 2 / 8, rel=0.05)
    # A client with fewer rows divides by those; so do the clients of a cohort.
    assert noise_of(dp_sgd, batch_size=8, num_examples=3) == pytest.approx(0.6 * 2 / 3, rel=0.05)
    cohort = noise_of(dp_sgd, batch_size=8, num_examples=6, cohort=2)
    assert cohort == pytest.approx(0.6 * 2 / 3 / 2**0.5, rel=0.05)
    assert noise_of(dp_sgd) is None
    assert noise_of(dp_sgd, batch_size=8, weights=True) is None
    assert noise_of({"name": "dp_sgd", "clip": 1.0, "epsilon": 3.0}, batch_size=8) is None
    assert granted_noise(Observation(KEY, {}, {}, "gradient", Knowledge())) is None


def test_no_length_without_position_embeddings(gpt2: Victim) -> None:
    frozen = {"name": "freeze_embeddings", "word": False, "position": True}
    seen, truth = gpt2.capture([5], frozen)
    assert read(gpt2, seen) == (seen_tokens(truth), None)


def refused(victim: Victim, seen: Observation, reason: str) -> None:
    with pytest.raises(CannotAttack, match=re.escape(reason)):
        read(victim, seen)


def test_frozen_and_unreadable_words(gpt2: Victim, untied: Victim) -> None:
    frozen, _ = gpt2.capture([5], {"name": "freeze_embeddings"})
    refused(gpt2, frozen, f"does not send the word embeddings (frozen); the reply has no {WORD!r}")
    seen, truth = untied.capture([5])
    assert tokens(truth)
    still = {**seen.received, WORD: torch.zeros_like(seen.received[WORD])}
    refused(
        untied,
        replace(seen, received=still),
        "no row of the word embeddings stands out by bag = 'auto'",
    )
    broken = {**seen.received, PLACE: torch.full_like(seen.received[PLACE], torch.nan)}
    refused(untied, replace(seen, received=broken), f"{PLACE!r} holds NaN or infinite values")
