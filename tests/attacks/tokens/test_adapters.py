"""Sentences of trained text models, read off the gradients of LoRA adapters alone."""

import re
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from attacks.base import Job
from attacks.film.film import FILM
from attacks.solved.embedding_rows import EmbeddingRows
from attacks.span.span import Span
from attacks.texts.lamp import LAMP
from attacks.texts.tag import TAG, DLGText
from attacks.tokens.adapters import AdapterSpan, first_round, read_adapters
from attacks.tokens.attacked_model import AttackedModel
from attacks.tokens.exact_traces import Traces, read_traces
from attacks.tokens.soft_traces import soft_traces
from fedsim.errors import CannotAttack
from fedsim.knowledge import Knowledge
from fedsim.models.adapters import is_second_factor
from fedsim.store.capture import Observation
from fedsim.tasks.text import TextTask
from fedsim.types import Tensors
from tests.attacks.adapted import adapted, run, sentences
from tests.attacks.victims import KEY, Victim, lines

DENSE = ("query", "value", "dense")
SGD = {"protocol": "fedavg", "learning_rate": 0.01}
WIDTH, RANK = 40, 12


@pytest.fixture(scope="module")
def gpt2() -> Victim:
    return adapted("tiny-gpt2", 32, 20)


@pytest.fixture(scope="module")
def fresh() -> Victim:
    return adapted("tiny-gpt2", 32, 0)


@pytest.fixture(scope="module")
def bert() -> Victim:
    return adapted("tiny-bert", 32, 20, lora_targets=DENSE)


def traces(victim: Victim, seen: Observation) -> Traces:
    assert isinstance(victim.task, TextTask)
    return read_traces(AttackedModel.of(seen, victim.task))


def random(*shape: int, seed: int) -> Tensor:
    rng = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=rng, dtype=torch.float64)


def layer(tokens: int, *, zero: bool = False, missed: int = 0) -> tuple[AdapterSpan | None, Tensor]:
    """The span of a layer with two adapters, from their definition, and its inputs.

    The first ``missed`` tokens leave no trace in the adapter of the queries.
    """
    x = random(tokens, WIDTH, seed=1)
    sent: Tensors = {}
    received: Tensors = {}
    for number, name in enumerate(("query", "value")):
        slopes = random(tokens, 20, seed=10 + number)
        slopes[: missed if name == "query" else 0] = 0
        a, b = random(RANK, WIDTH, seed=20 + number), random(20, RANK, seed=30 + number)
        a, b = a.requires_grad_(), (0 * b if zero else b).requires_grad_()
        loss = ((x @ a.T @ b.T) * slopes).sum()
        grads = torch.autograd.grad(loss, [a, b])
        for part, value, gradient in zip("AB", (a, b), grads, strict=True):
            sent[f"{name}.lora_{part}.default.weight"] = value.detach()
            received[f"{name}.lora_{part}.default.weight"] = gradient
    seen = Observation(KEY, sent, received, "gradient", Knowledge())
    names = [name for name in sent if "lora_A" in name]
    return read_adapters(seen, names, torch.device("cpu")), x


@pytest.mark.parametrize(
    ("tokens", "zero", "spans"),
    [(5, False, 3), (5, True, 2), (11, True, 2), (12, True, 0), (13, False, 1), (23, False, 1),
     (24, False, 0), (30, False, 0)],
)  # fmt: skip
def test_inputs_lie_in_all_spans_that_have_room(tokens: int, zero: bool, spans: int) -> None:
    found, x = layer(tokens, zero=zero)
    assert found is not None
    assert len(found.blocks) == spans
    assert found.full == (spans == 0)
    if found.full:
        most = RANK if zero else 2 * RANK
        assert f"has rank {most} of {most}" in found.reason
        assert ("dL/dA is 0, as B is" in found.reason) == zero
        return
    assert found.rank == tokens
    others = random(200, WIDTH, seed=2)
    for measure in (found.distance, found.rough_distance):
        assert float(measure(x).max()) < 1e-6
        assert float(measure(others).min()) > 0.005
    assert found.filled(x)
    assert not found.filled(x[1:])
    if tokens + 3 < found.width:
        wider = found.widened(others[:3])
        assert float(wider.distance(torch.cat([x, others[:3]])).max()) < 1e-6
        assert float(wider.distance(others[3:]).min()) > 0.005


@pytest.mark.parametrize("zero", [False, True])
def test_an_adapter_that_misses_a_token_does_not_rule_it_out(zero: bool) -> None:
    """In a causal model the first token attends to itself alone, whatever its query."""
    found, x = layer(7, zero=zero, missed=1)
    assert found is not None
    assert len(found.blocks) == (1 if zero else 2)
    assert found.rank == 7
    assert float(found.distance(x).max()) < 1e-6


def test_nothing_is_read_where_nothing_moved() -> None:
    names = ["q.lora_A.w", "q.lora_B.w"]
    zero = {name: torch.zeros(4, 4) for name in names}
    for value in (0.0, torch.nan):
        received = {name: torch.full((4, 4), value) for name in names}
        seen = Observation(KEY, zero, received, "gradient", Knowledge())
        assert read_adapters(seen, names[:1], torch.device("cpu")) is None


@pytest.mark.some(2)
@pytest.mark.parametrize("rows", [[5], [7]])
def test_a_sentence_from_adapters(gpt2: Victim, fresh: Victim, rows: list[int]) -> None:
    for victim in (gpt2, fresh):
        seen, truth = victim.capture(rows)
        assert all("lora_" in name for name in seen.received)
        guess = run(victim, replace(seen, knowledge=Knowledge()))
        assert sentences(guess.guess) == sentences(truth)
        assert guess.confidence == ("certified",)


@pytest.mark.slow
def test_a_sentence_of_an_encoder(bert: Victim) -> None:
    seen, truth = bert.capture([5])
    guess = run(bert, seen)
    assert sentences(guess.guess) == sentences(truth)
    assert torch.equal(guess.guess.labels, truth.labels)
    assert guess.confidence == ("certified",)


@pytest.mark.slow
def test_two_adapters_of_a_layer_hold_more_tokens_than_one() -> None:
    """In the first round each B has to hold all tokens; later all A of the layer do together."""
    options = {"lora_targets": DENSE}
    later, first = (adapted("tiny-bert", 16, steps, **options) for steps in (20, 0))
    seen, truth = later.capture([5])
    assert truth.mask is not None
    assert int(truth.mask.sum()) == 24
    found = traces(later, seen).before
    assert isinstance(found, AdapterSpan)
    assert found.reason.startswith("dL/dA has rank 24 of 32")
    blurred(first, first.capture([5])[0], "dL/dA is 0, as B is")


def test_several_steps_prove_nothing(fresh: Victim) -> None:
    seen, truth = fresh.capture([5], **SGD, local_steps=2)
    guess = run(fresh, replace(seen, knowledge=Knowledge(local_steps=2)))
    assert sentences(guess.guess) == sentences(truth)
    assert guess.confidence == ("in_span",)


@pytest.mark.some(2)
@pytest.mark.parametrize("steps", [1, 4])
def test_words_of_adapters_after_steps_of_adamw(steps: int, gpt2: Victim) -> None:
    """The update is no multiple of a gradient, and true words are still among the nearest."""
    adamw = {"protocol": "fedavg", "learning_rate": 1e-3, "optimizer": "adamw"}
    shares = []
    for row in (2, 5, 7):
        seen, truth = gpt2.capture([row], **adamw, local_steps=steps)
        seen = replace(seen, knowledge=Knowledge(local_steps=steps, optimizer="adamw"))
        assert isinstance(gpt2.task, TextTask)
        found = soft_traces(AttackedModel.of(seen, gpt2.task))
        line = lines(truth)[0][1:-1]
        shares += [
            float((one < one[word]).double().mean())
            for word, one in zip(line, found.statistics[1:], strict=False)
        ]
    assert sorted(shares)[len(shares) // 2] < 0.25  # 0.5 by chance


def test_weights_of_one_step_are_a_gradient(gpt2: Victim) -> None:
    seen, truth = gpt2.capture([5], **SGD, local_steps=1)
    guess = run(gpt2, replace(seen, knowledge=Knowledge(local_steps=1)))
    assert sentences(guess.guess) == sentences(truth)
    assert guess.confidence == ("certified",)


@pytest.mark.slow
def test_another_gradient_certifies_nothing(gpt2: Victim) -> None:
    seen, _ = gpt2.capture([5])
    other, _ = gpt2.capture([6])
    spoilt = {k: other.received[k] if ".h.1." in k else v for k, v in seen.received.items()}
    try:
        confidence = run(gpt2, replace(seen, received=spoilt)).confidence
    except CannotAttack:
        return
    assert "certified" not in (confidence or ())


def blurred(victim: Victim, seen: Observation, reason: str) -> None:
    """No sentence is singled out."""
    with pytest.raises(CannotAttack, match=re.escape(reason)):
        traces(victim, seen)


@pytest.mark.slow
def test_a_full_first_round_is_guessed_and_said(fresh: Victim) -> None:
    seen, _ = fresh.capture([3, 4])
    guess = run(fresh, seen)
    assert set(guess.confidence or ()) == {"guess"}
    assert "B is 0 at first and dL/dA with it, so that A x alone leaks" in guess.note


@pytest.mark.slow
def test_a_frozen_factor_leaves_the_images_of_inputs(gpt2: Victim) -> None:
    for rows, read in (([5], True), ([3, 4], False)):
        seen, truth = gpt2.capture(rows, {"name": "ffa_lora"})
        assert all(map(is_second_factor, seen.received))
        guess = run(gpt2, seen)
        assert (sentences(guess.guess) == sentences(truth)) == read
        assert set(guess.confidence or ()) == {"certified" if read else "guess"}
        assert read or "A is frozen, so that A x alone leaks" in guess.note


def refused(victim: Victim, seen: Observation, reason: str, attack: Any = None) -> None:
    with pytest.raises(CannotAttack, match=re.escape(reason)):
        run(victim, seen, attack)


def test_reasons_name_rank_and_layer(gpt2: Victim, fresh: Victim) -> None:
    name = "transformer.h.0.attn.c_attn"
    for victim, said in (
        (
            fresh,
            "dL/dA is 0, as B is, so that A x alone leaks, through dL/dB; dL/dB has rank 32 of 32",
        ),
        (gpt2, "dL/dA has rank 32 of 32; dL/dB has rank 32 of 32"),
    ):
        many, _ = victim.capture([3, 4])
        blurred(victim, many, f"the gradients of the adapters of {name!r} are full: {said}")
    noisy, _ = gpt2.capture([5], {"name": "gaussian_noise", "std": 1e-4})
    blurred(gpt2, noisy, "dL/dB has rank 32 of 32. The batch has too many tokens, or noise")
    seen, _ = gpt2.capture([5])
    still = {key: torch.zeros_like(value) for key, value in seen.received.items()}
    refused(gpt2, replace(seen, received=still), f"the gradient of {name!r} is zero")
    later = {key: value for key, value in seen.received.items() if ".h.1." in key}
    refused(gpt2, replace(seen, received=later), f"does not send {name!r}")


def test_attacks_on_embeddings_say_that_no_row_was_sent(gpt2: Victim, bert: Victim) -> None:
    for victim, table in ((gpt2, "transformer.wte"), (bert, "bert.embeddings.word_embeddings")):
        seen, _ = victim.capture([5])
        refused(victim, seen, f"the reply has no '{table}.weight'", EmbeddingRows())
    seen, _ = gpt2.capture([5])
    refused(gpt2, seen, "no 'transformer.wte.weight'", FILM())


@pytest.mark.some(3)
@pytest.mark.parametrize(
    ("attack", "steps"), [(LAMP(steps=3, starts=4, proposals=4, discrete_every=2), 20),
                          (TAG(steps=3), 20), (TAG(steps=3), 0), (DLGText(steps=3), 20)],
)  # fmt: skip
def test_gradient_matching_runs_on_adapters(bert: Victim, attack: Any, steps: int) -> None:
    victim = bert if steps else adapted("tiny-bert", 4, 0)
    adamw = {"protocol": "fedavg", "optimizer": "adamw", "local_steps": 2}
    optimizer = None if steps else "adamw"
    seen, truth = victim.capture([5], **({} if steps else adamw))
    length = (len(lines(truth)[0]),)
    labels = tuple(truth.labels.tolist())
    known = Knowledge(num_examples=1, lengths=length, labels=labels, optimizer=optimizer)
    guess = run(victim, replace(seen, knowledge=known), attack)
    assert guess.guess.inputs.shape == truth.inputs.shape
    assert guess.objective is not None
    assert 0 < guess.objective < float("inf")


def test_a_factor_that_stays_hides_no_words(gpt2: Victim) -> None:
    """The server broadcasts a B of 0, and the client's own is another."""
    seen, truth = gpt2.capture([5], {"name": "fedsa_lora"})
    assert not any(map(is_second_factor, seen.received))
    assert first_round(seen).startswith("B stays with the client")
    sent = {k: 0 * v if is_second_factor(k) else v for k, v in seen.sent.items()}
    found = traces(gpt2, replace(seen, sent=sent))
    words = found.shortlist(Job(), found.before.rank).tokens
    (line,) = lines(truth)
    assert [near.tolist() for near in words] == [[word] for word in line[:-1]]


def test_a_factor_that_stays_hides_no_order(gpt2: Victim) -> None:
    seen, truth = gpt2.capture([5], {"name": "fedsa_lora"})
    sent = {k: 0 * v if is_second_factor(k) else v for k, v in seen.sent.items()}
    guess = run(gpt2, replace(seen, sent=sent), Span())
    assert lines(guess.guess) == lines(truth)
    assert guess.confidence == ("guess",)
    assert guess.note.startswith("B stays with the client")
