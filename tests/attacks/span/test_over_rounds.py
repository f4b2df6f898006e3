"""Sentences from the mean of a client's rounds: what it holds, and which guess is kept."""

import math
import time
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from attacks.base import Job, Reconstruction
from attacks.observed.same_rows import ALONE
from attacks.span.span import Span, explained, joined, over_rounds
from attacks.tokens.layout import batch_of
from fedsim.knowledge import Knowledge
from fedsim.store.capture import CaptureKey, Kind, Observation
from fedsim.tasks.text import TextTask
from fedsim.types import Batch
from tests.attacks.images.cases import rng
from tests.attacks.victims import Victim, lines, overlap, trained

FROZEN: dict[str, object] = {"name": "freeze_embeddings", "position": True}


def rounds(
    victim: Victim, row: int, count: int, noise: float, **facts: object
) -> tuple[list[Observation], Batch]:
    """A client's gradients on one row, each at weights of its own and with noise."""
    found = []
    truth = victim.task.encode(victim.rows.take([row]))
    sent = dict(victim.sent)
    known = Knowledge.model_validate({"num_examples": 1, "all_rows": True, **facts})
    for number in range(1, count + 1):
        seen, _ = Victim(victim.task, victim.rows, sent).capture([row], FROZEN)
        draw = rng(100 * row + number)
        received = {
            name: value + noise * torch.randn(value.shape, generator=draw)
            for name, value in seen.received.items()
        }
        key = CaptureKey(round=number, client=0)
        found.append(replace(seen, key=key, received=received, knowledge=known))
        sent = {
            k: v - 0.01 * seen.received[k] if k in seen.received else v for k, v in sent.items()
        }
    return found, truth


def observation(value: list[float], sent: float = 0.0, kind: Kind = "gradient") -> Observation:
    weights = {"w": torch.full((1, len(value)), sent), "steps": torch.tensor(3)}
    update = torch.tensor([value])
    received = {"w": weights["w"] - update if kind == "weights" else update}
    known = Knowledge(defense=({"name": "sign"},))
    return Observation(CaptureKey(round=1, client=0), weights, received, kind, known)


@pytest.mark.parametrize("kind", ["gradient", "weights"])
def test_the_mean_is_that_of_updates_and_weights(kind: Kind) -> None:
    one = observation([1.0, 2.0, 4.0], 0.5, kind)
    two = observation([3.0, 2.0, 0.5], 1.0, kind)
    found = joined([one, two])
    torch.testing.assert_close(found.update()["w"][0], torch.tensor([2.0, 2.0, 2.25]).double())
    assert found.sent["w"].unique().tolist() == [0.75]
    assert found.sent["steps"] == 3
    assert found.knowledge.defense is None
    assert joined([one]) is one


def mean(*values: Tensor) -> Tensor:
    seen = [replace(observation([0.0]), received={"w": value}) for value in values]
    return joined(seen).received["w"]


def test_entries_that_were_left_out_do_not_count() -> None:
    whole = torch.randn(16, 32, generator=rng())
    halves = [whole * (torch.rand(16, 32, generator=rng(seed)) < 0.5) for seed in (1, 2)]
    sent = (halves[0] != 0) | (halves[1] != 0)
    torch.testing.assert_close(mean(*halves), whole * sent)


def test_zeros_of_rounding_count_and_signs_are_averaged() -> None:
    coarse = torch.tensor([[0.0, 1.0, 2.0, -3.0] * 32]), torch.tensor([[1.0, 0.0, 2.0, -5.0] * 32])
    torch.testing.assert_close(mean(*coarse)[0, :4], torch.tensor([0.5, 0.5, 2.0, -4.0]))
    signs = torch.tensor([[1.0, -1.0, 1.0]]), torch.tensor([[1.0, 1.0, -1.0]])
    assert mean(*signs).tolist() == [[1.0, 0.0, 0.0]]


@pytest.mark.slow
def test_noise_averages_out(gpt2: Victim) -> None:
    seen, truth = rounds(gpt2, 5, 8, 2e-3)
    (alone,) = Span().reconstruct(seen[:1], gpt2.task, [rng()], Job())
    together = Span().guess(joined(seen), gpt2.task, rng(), Job())
    assert overlap(together, lines(truth)) > overlap(alone, lines(truth)) + 0.3


def test_what_explains_all_rounds_is_the_truth(gpt2: Victim) -> None:
    seen, truth = rounds(gpt2, 5, 3, 0.03)
    other = gpt2.task.encode(gpt2.rows.take([6]))
    assert isinstance(gpt2.task, TextTask)
    values = [
        [explained(seen[:count], gpt2.task, batch, Job()) for batch in (truth, other)]
        for count in (1, 3)
    ]
    assert values[0][0] > values[0][1]
    # The lead grows as the root of the rounds.
    assert values[1][0] - values[1][1] > 1.3 * (values[0][0] - values[0][1])


def test_classes_that_are_not_known_explain_nothing() -> None:
    victim = trained("tiny-bert", 1)
    assert isinstance(victim.task, TextTask)
    seen, truth = victim.capture([3])
    unknown = replace(truth, labels=torch.tensor([-1]))
    assert explained([seen], victim.task, unknown, Job()) == -math.inf
    assert explained([seen], victim.task, truth, Job()) > 0


def guesses(
    victim: Victim, seen: list[Observation], found: list[Reconstruction], job: Job | None = None
) -> list[Reconstruction]:
    assert isinstance(victim.task, TextTask)
    return over_rounds(seen, lambda _, place: found[place], victim.task, job or Job())


def test_the_guess_that_explains_most_is_kept(gpt2: Victim) -> None:
    seen, truth = rounds(gpt2, 5, 3, 0.0)
    right = batch_of(lines(truth), gpt2.task, [-1])
    wrong = batch_of(lines(gpt2.task.encode(gpt2.rows.take([6]))), gpt2.task, [-1])
    one, two = Reconstruction(wrong), Reconstruction(right, confidence=("consistent",))
    assert guesses(gpt2, seen, [one, two, one]) == [one, two, two]
    sure = Reconstruction(wrong, confidence=("certified",))
    assert guesses(gpt2, seen, [sure, two, two]) == [sure] * 3
    assert guesses(gpt2, seen[::-1], [one, two, two]) == [two, two, two]
    late = guesses(gpt2, seen, [one, two, two], Job(deadline=time.monotonic()))
    assert [(guess.guess is wrong, guess.expired) for guess in late] == [
        (True, False),
        (True, True),
        (True, True),
    ]


def test_rows_that_may_differ_are_attacked_round_by_round(gpt2: Victim) -> None:
    seen, _ = rounds(gpt2, 5, 2, 0.0, all_rows=None)
    attack = Span(over_rounds=True)
    recovered = attack.reconstruct(seen, gpt2.task, [rng(), rng()], Job())
    assert [guess.note for guess in recovered] == [ALONE] * 2
    assert [guess.confidence for guess in recovered] == [("certified",)] * 2
    assert (Span().grouped_by, attack.grouped_by) == ("each", "same_client")


def test_an_earlier_guess_does_not_hide_that_a_search_was_cut_short(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    batch = Batch(torch.zeros(1, 2), torch.tensor([-1]))
    first = Reconstruction(batch, confidence=("guess",))
    second = Reconstruction(batch, confidence=("guess",), exhausted=True)
    score = iter((1.0, 0.5))
    monkeypatch.setattr("attacks.span.span.explained", lambda *_: next(score))
    seen = [
        replace(observation([1.0]), key=CaptureKey(round=number, client=0)) for number in (1, 2)
    ]
    seen = [replace(reply, knowledge=Knowledge(num_examples=1, all_rows=True)) for reply in seen]
    guesses = over_rounds(
        seen,
        lambda _, position: (first, second)[position],
        None,  # type: ignore[arg-type]
        Job(),
    )
    assert [guess.exhausted for guess in guesses] == [False, True]
