"""One sentence of a trained text model, read off its position rows in closed form."""

from __future__ import annotations

import os
import re
from dataclasses import replace

import pytest
import torch

from attacks.base import Job, Reconstruction
from attacks.span.april import APRIL
from fedsim.capture import Observation
from fedsim.cell import TaskConfig
from fedsim.data.rows import load_rows
from fedsim.errors import CannotAttack
from fedsim.knowledge import Knowledge
from fedsim.tasks import initial_weights, make_task
from tests.attacks.solved.test_embedding_rows import PLACE, WORD, Victim, lines, trained

FROZEN: dict[str, object] = {"name": "freeze_embeddings"}


@pytest.fixture(scope="module")
def bert() -> Victim:
    return trained("tiny-bert", 30)


@pytest.fixture(scope="module")
def gpt2() -> Victim:
    return trained("tiny-gpt2", 60)


def solve(victim: Victim, seen: Observation) -> Reconstruction:
    (guess,) = APRIL().reconstruct([seen], victim.task, [torch.Generator()], Job())
    return guess


@pytest.mark.parametrize("defenses", [(), (FROZEN,)])
@pytest.mark.parametrize("model", ["bert", "gpt2"])
def test_one_sentence_in_order(
    model: str, defenses: tuple[dict[str, object], ...], request: pytest.FixtureRequest
) -> None:
    victim: Victim = request.getfixturevalue(model)
    repeats = 0  # sentences that hold a word twice
    for row in (0, 3, 5):
        seen, truth = victim.capture([row], *defenses)
        guess = solve(victim, seen)
        assert lines(guess.guess) == lines(truth)
        assert torch.equal(guess.guess.labels, truth.labels)
        assert guess.confidence == ("certified",)
        assert guess.objective is not None
        assert guess.objective < 1e-4
        (line,) = lines(truth)
        repeats += len(line[1:-1]) > len(set(line[1:-1]))
    assert repeats


def test_rows_are_used_where_they_are_sent(bert: Victim) -> None:
    seen, truth = bert.capture([3])
    block = {name: torch.zeros_like(seen.received[name]) for name in seen.received if ".0." in name}
    guess = solve(bert, replace(seen, received={**seen.received, **block}))
    assert lines(guess.guess) == lines(truth)
    assert guess.confidence == ("guess",)
    other, _ = bert.capture([4])
    mixed = {**seen.received, WORD: other.received[WORD]}
    assert lines(solve(bert, replace(seen, received=mixed)).guess) != lines(truth)


def test_another_gradient_certifies_nothing(gpt2: Victim) -> None:
    seen, truth = gpt2.capture([5], FROZEN)
    other, _ = gpt2.capture([6], FROZEN)
    own = {name: value for name, value in seen.received.items() if ".0." in name or "wpe" in name}
    guess = solve(gpt2, replace(seen, received={**other.received, **own}))
    assert lines(guess.guess) == lines(truth)
    assert guess.confidence == ("guess",)


def test_weights_of_one_step_are_a_gradient(bert: Victim, gpt2: Victim) -> None:
    # A small step of the encoder drowns in the rounding of its weights.
    for victim, rate, proof in (
        (gpt2, 0.01, "certified"),
        (bert, 1.0, "certified"),
        (bert, 0.01, "guess"),
    ):
        seen, truth = victim.capture(
            [5], FROZEN, protocol="fedavg", learning_rate=rate, local_steps=1
        )
        guess = solve(victim, seen)
        assert (lines(guess.guess) == lines(truth)) == (proof == "certified")
        assert guess.confidence == (proof,)


def test_dropout_is_not_certified(bert: Victim) -> None:
    seen, truth = bert.capture([5], train_mode=True)
    guess = solve(bert, seen)
    assert lines(guess.guess) == lines(truth)  # both tables see the same masks
    assert guess.confidence == ("guess",)


def refused(victim: Victim, seen: Observation, reason: str) -> None:
    with pytest.raises(CannotAttack, match=re.escape(reason)):
        solve(victim, seen)


def test_what_april_cannot_attack(bert: Victim, gpt2: Victim) -> None:
    seen, _ = bert.capture([3, 4])
    refused(bert, seen, "the batch holds 2 examples")
    refused(bert, replace(seen, knowledge=Knowledge()), "the batch holds None examples")
    seen, _ = bert.capture([3], {**FROZEN, "position": True})
    refused(bert, seen, f"(frozen); the reply has no {PLACE!r}")
    seen, _ = bert.capture([3])
    same = seen.received[PLACE].clone()
    same[1] = same[0]
    refused(bert, replace(seen, received={**seen.received, PLACE: same}), "position rows stand out "
            f"and have rank {int(same.any(1).sum()) - 1}.")  # fmt: skip
    seen, _ = gpt2.capture([5], FROZEN, {"name": "gaussian_noise", "std": 1e-4})
    refused(gpt2, seen, "has rank 128 at width 128")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "data"),
    [
        ("fedsim/gpt2-8k", "film/enron-sentences"),
        ("sentence-transformers/all-MiniLM-L6-v2", "nyu-mll/glue:cola"),
    ],
)
def test_hub_models(model: str, data: str) -> None:
    if "FEDSIM_HUB" not in os.environ:
        pytest.skip(f"FEDSIM_HUB is not set: no {model} here")
    rows = load_rows(data, "train[:600]", modality="text")
    config = TaskConfig(model=model, dataset=data, max_length=48)
    task = make_task(config, rows)
    victim = Victim(task, rows, initial_weights(task, config, 0))
    for row in (7, 100, 341):
        for defenses in ((), (FROZEN,)):
            seen, truth = victim.capture([row], *defenses)
            guess = solve(victim, seen)
            assert lines(guess.guess) == lines(truth)
            assert guess.confidence == ("certified",)
