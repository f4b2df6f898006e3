"""Whole sentences of trained text models, read off the span of their first block's gradients."""

import copy
import re
import time
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers import BertConfig, BertForSequenceClassification

from attacks.base import Job, Reconstruction
from attacks.span.span import Span
from attacks.tokens.attacked_model import AttackedModel
from attacks.tokens.exact_traces import read_traces
from attacks.tokens.first_layers import FirstLayers
from attacks.tokens.layout import batch_of
from attacks.tokens.span_membership import best_test
from fedsim.config.cell import TaskConfig
from fedsim.data.rows import load_rows
from fedsim.errors import CannotAttack
from fedsim.knowledge import Knowledge
from fedsim.store.capture import Observation
from fedsim.tasks import initial_weights, make_task
from fedsim.tasks.base import state
from fedsim.tasks.text import TextTask
from fedsim.types import Batch
from tests.attacks.victims import Countdown, Victim, hub, lines

FROZEN: dict[str, object] = {"name": "freeze_embeddings", "position": True}
SGD = {"protocol": "fedavg", "learning_rate": 0.01, "local_steps": 1}


def run(
    victim: Victim, seen: Observation, attack: Span | None = None, job: Job | None = None
) -> Reconstruction:
    rng = torch.Generator().manual_seed(0)
    (guess,) = (attack or Span()).reconstruct([seen], victim.task, [rng], job or Job())
    return guess


def sentences(batch: Batch) -> Counter[tuple[int, ...]]:
    return Counter(map(tuple, lines(batch)))


def labelled(batch: Batch) -> Counter[tuple[tuple[int, ...], int]]:
    pairs = zip(lines(batch), batch.labels.tolist(), strict=True)
    return Counter((tuple(line), label) for line, label in pairs)


@pytest.mark.some(9)
@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("rows", [[0], [2], [5], [3, 4]])
def test_sentences_of_an_encoder(
    bert: Victim, rows: list[int], known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, truth = bert.capture(rows, FROZEN)
    knowledge = Knowledge(num_examples=len(rows)) if known else Knowledge()
    # Of a batch of unknown size the search goes on from each start, here from one.
    monkeypatch.setattr("attacks.span.exact.search._STARTS", 1)
    guess = run(bert, replace(seen, knowledge=knowledge))
    assert labelled(guess.guess) == labelled(truth)
    assert guess.confidence == ("certified",) * len(rows)
    assert guess.objective is not None
    assert guess.objective < 1e-5


def test_a_work_budget_ends_the_search_at_the_same_guess_on_any_machine(
    bert: Victim, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, _ = bert.capture([20, 21], FROZEN)
    attack = Span(work=8_000)
    quick = run(bert, seen, attack)
    forward = BertForSequenceClassification.forward

    def slow(*args: Any, **kwargs: Any) -> Any:
        time.sleep(0.002)
        return forward(*args, **kwargs)

    monkeypatch.setattr(BertForSequenceClassification, "forward", slow)
    delayed = run(bert, seen, attack, Job(deadline=time.monotonic() + 600))
    for guess in (quick, delayed):
        assert guess.note.endswith("its work budget of 8,000 tokens ended the search")
        assert guess.exhausted
        assert not guess.expired
    assert lines(quick.guess) == lines(delayed.guess) != []
    assert (quick.objective, quick.confidence) == (delayed.objective, delayed.confidence)


def test_the_clock_ends_a_search_within_its_work_budget_unfinished(bert: Victim) -> None:
    seen, _ = bert.capture([20, 21], FROZEN)
    guess = run(bert, seen, Span(work=8_000), Job(deadline=0.0))
    assert guess.expired
    assert not guess.exhausted
    assert "work budget" not in guess.note


@pytest.mark.some(9)
@pytest.mark.parametrize("defenses", [(FROZEN,), ()])
@pytest.mark.parametrize("rows", [[0], [7], [3, 4], [20, 21, 22, 23]])
def test_sentences_of_a_causal_model(
    gpt2: Victim, rows: list[int], defenses: tuple[dict[str, object], ...]
) -> None:
    seen, truth = gpt2.capture(rows, *defenses)
    guess = run(gpt2, replace(seen, knowledge=Knowledge()))
    assert sentences(guess.guess) == sentences(truth)
    assert guess.confidence == ("certified",) * len(rows)
    assert guess.guess.mask is not None
    assert torch.equal(guess.guess.labels.eq(-100), guess.guess.mask.eq(0))


def test_the_last_token_shows_as_a_prediction(gpt2: Victim) -> None:
    """Texts without an end token, as most applications encode them for GPT-2."""
    seen, truth = gpt2.capture([3, 9])
    short = [line[:-1] for line in lines(truth)]
    assert isinstance(gpt2.task, TextTask)
    network = gpt2.task.model(gpt2.sent)
    gradient = gpt2.task.gradient(network, batch_of(short, gpt2.task, []))
    guess = run(gpt2, replace(seen, received=gradient))
    assert set(guess.confidence or ()) == {"certified"}
    assert sentences(guess.guess) == Counter(map(tuple, short))


def test_sentences_that_repeat(bert: Victim, gpt2: Victim) -> None:
    for victim, rows in ((bert, [5, 5]), (gpt2, [5, 5]), (gpt2, [5, 9, 5])):
        seen, truth = victim.capture(rows, FROZEN)
        guess = run(victim, seen)
        assert sentences(guess.guess) == sentences(truth)
        assert set(guess.confidence or ()) == {"certified"}


def test_lengths_narrow_the_search(bert: Victim, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attacks.span.exact.search._STARTS", 1)
    seen, truth = bert.capture([3, 4], FROZEN)
    lengths = tuple(len(line) for line in lines(truth))
    guess = run(bert, replace(seen, knowledge=Knowledge(lengths=lengths)))
    assert sentences(guess.guess) == sentences(truth)


def test_classes_of_a_causal_classifier() -> None:
    rows = load_rows("sentences", "train", modality="text")
    config = TaskConfig(model="tiny-gpt2", dataset="sentences", kind="text-classification")
    task = make_task(config, rows)
    victim = Victim(task, rows, initial_weights(task, config, 0))
    seen, truth = victim.capture([3, 4, 6], FROZEN)
    guess = run(victim, seen)
    assert labelled(guess.guess) == labelled(truth)
    assert guess.confidence == ("certified",) * 3


def test_no_sentence_in_the_span_is_a_guess_of_the_nearest_tokens(
    gpt2: Victim, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("attacks.span.exact.search.grown", lambda *_, **__: [])
    monkeypatch.setattr("attacks.span.span.LikelihoodSearch.run", lambda _: None)
    seen, _ = gpt2.capture([3, 4], FROZEN)
    assert run(gpt2, seen).confidence == ("guess", "guess")


def test_weights_of_one_step_are_a_gradient(gpt2: Victim) -> None:
    for rows in ([5], [5, 6]):
        seen, truth = gpt2.capture(rows, FROZEN, **SGD)
        guess = run(gpt2, seen)
        assert sentences(guess.guess) == sentences(truth)
        assert guess.confidence == ("certified",) * len(rows)


@pytest.mark.some(2)
@pytest.mark.parametrize("optimizer", ["sgd", "momentum"])
def test_several_steps_prove_nothing(gpt2: Victim, optimizer: str) -> None:
    seen, truth = gpt2.capture(
        [5], FROZEN, **{**SGD, "local_steps": 3, "optimizer": optimizer}, train_mode=False
    )
    guess = run(gpt2, seen)
    assert sentences(guess.guess) == sentences(truth)
    assert guess.confidence == ("in_span",)


def test_a_scaled_gradient_is_as_good(gpt2: Victim) -> None:
    seen, truth = gpt2.capture([5], FROZEN)
    scaled = {name: 0.003 * value for name, value in seen.received.items()}
    guess = run(gpt2, replace(seen, received=scaled))
    assert sentences(guess.guess) == sentences(truth)
    assert guess.confidence == ("certified",)


def test_another_gradient_certifies_nothing(bert: Victim, gpt2: Victim) -> None:
    for victim in (bert, gpt2):
        seen, truth = victim.capture([5], FROZEN)
        other, _ = victim.capture([6], FROZEN)
        block = [name for name in seen.received if ".0." in name]
        mixed = {**other.received, **{name: seen.received[name] for name in block}}
        guess = run(victim, replace(seen, received=mixed))
        assert sentences(guess.guess) == sentences(truth)
        assert guess.confidence == ("in_span",)


@pytest.mark.slow
@pytest.mark.parametrize("model", ["bert", "gpt2"])
def test_dropout_is_not_certified(model: str, request: pytest.FixtureRequest) -> None:
    victim = request.getfixturevalue(model)
    seen, _ = victim.capture([5], FROZEN, train_mode=True)
    assert set(run(victim, seen).confidence or ()) == {"guess"}


@pytest.mark.slow
def test_rounding_on_a_coarse_wire_counts(gpt2: Victim) -> None:
    seen, truth = gpt2.capture([5], FROZEN)
    top = max(float(value.abs().max()) for value in seen.received.values())
    for dtype, proof in ((torch.float16, "certified"), (torch.bfloat16, "consistent")):
        coarse = {name: (value / top).to(dtype) for name, value in seen.received.items()}
        guess = run(gpt2, replace(seen, received=coarse))
        assert guess.confidence == (proof,)
        assert sentences(guess.guess) == sentences(truth)


def refused(victim: Victim, seen: Observation, reason: str) -> None:
    with pytest.raises(CannotAttack, match=re.escape(reason)):
        run(victim, seen)


def inexact(victim: Victim, seen: Observation, reason: str) -> None:
    """The exact test is impossible, so that the attack decodes."""
    task = victim.task
    assert isinstance(task, TextTask)

    def test_exactly() -> None:
        model = AttackedModel.of(seen, task)
        best_test(model, read_traces(model).before)

    with pytest.raises(CannotAttack, match=reason):
        test_exactly()


def test_rank_limits_are_named(bert: Victim, gpt2: Victim) -> None:
    for victim, name in ((bert, "bert.encoder.layer.0.attention.self.query"),
                         (gpt2, "transformer.h.0.attn.c_attn")):  # fmt: skip
        many, truth = victim.capture(list(range(40, 56)), FROZEN)
        assert truth.mask is not None
        assert int(truth.mask.sum()) > 128
        inexact(victim, many, rf"{name}' has rank 12[678] at width 128")
        noisy, _ = victim.capture([5], FROZEN, {"name": "gaussian_noise", "std": 1e-4})
        inexact(victim, noisy, "has rank 128 at width 128")


def test_adaptive_optimizers_hide_the_exact_span(gpt2: Victim) -> None:
    seen, _ = gpt2.capture([5], FROZEN, **{**SGD, "optimizer": "adamw"})
    inexact(gpt2, replace(seen, knowledge=Knowledge(optimizer="adamw")), "an update by 'adamw'")
    inexact(gpt2, seen, "has rank 128 at width 128")


@pytest.mark.slow
def test_layers_that_are_missing_are_named(gpt2: Victim) -> None:
    seen, _ = gpt2.capture([5], FROZEN)
    name = "transformer.h.0.attn.c_attn.weight"
    without = {key: value for key, value in seen.received.items() if key != name}
    refused(gpt2, replace(seen, received=without), "does not send 'transformer.h.0.attn.c_attn'")
    broken = {**seen.received, name: torch.full_like(seen.received[name], torch.nan)}
    refused(gpt2, replace(seen, received=broken), "is zero, NaN or infinite")
    first = {key: value for key, value in seen.received.items() if key == name}
    alone = replace(seen, received=first)
    inexact(gpt2, alone, "behind the attention are not sent")
    assert set(run(gpt2, alone).confidence or ()) == {"guess"}


@pytest.mark.slow
def test_one_block_of_a_classifier_is_too_few() -> None:
    rows = load_rows("sentences", "train", modality="text")
    task = make_task(TaskConfig(model="tiny-bert", dataset="sentences"), rows)
    spec = task.spec.model_copy(
        update={"architecture": {**task.spec.architecture, "num_hidden_layers": 1}}
    )
    shallow = replace(task, spec=spec)
    victim = Victim(shallow, rows, state(shallow.build()))
    seen, _ = victim.capture([5], FROZEN)
    inexact(victim, seen, r"rank \d+ at width 128.*a model of two blocks or more")
    assert len(run(victim, seen).guess.inputs) == 1


def test_time_ends_the_search(bert: Victim) -> None:
    seen, _ = bert.capture([20, 21, 22, 23], FROZEN)
    job = Countdown(asks=20)
    guess = run(bert, seen, job=job)
    assert guess.expired
    assert "certified" not in (guess.confidence or ())
    assert job.asked < 100


def test_layers_are_found_by_running() -> None:
    torch.manual_seed(0)
    network = BertForSequenceClassification(
        BertConfig(
            vocab_size=50, hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
            intermediate_size=32, max_position_embeddings=12, attn_implementation="eager",
        )
    ).eval()  # fmt: skip
    layers = FirstLayers(network, [7, 8, 9], 10)
    block = "bert.encoder.layer.0"
    assert layers.tokens.modules == tuple(
        f"{block}.attention.self.{name}" for name in ("query", "key", "value")
    )
    assert [layer.modules[0] for layer in layers.contexts] == [
        f"{block}.attention.output.dense", f"{block}.intermediate.dense", f"{block}.output.dense",
    ]  # fmt: skip
    assert not layers.causal
    ids = torch.tensor([[5, 6, 7]])
    whole = layers.of_sentences(layers.tokens, ids, torch.ones_like(ids))
    for position in range(3):
        torch.testing.assert_close(
            layers.of_tokens(ids[0, position : position + 1], position)[0], whole[0, position]
        )


def test_extensions_run_side_by_side(gpt2: Victim) -> None:
    layers = FirstLayers(gpt2.task.model(gpt2.sent), [7, 8, 9], 32)
    assert layers.causal
    assert layers.tokens.modules == ("transformer.h.0.attn.c_attn",)
    prefixes, tokens = torch.tensor([[0, 30, 41], [0, 52, 60]]), torch.tensor([70, 80, 90])
    for layer in layers.contexts:
        beside = layers.of_extensions([layer], prefixes, tokens)[0]
        for i, prefix in enumerate(prefixes):
            for j in range(3):
                ids = torch.cat([prefix, tokens[j : j + 1]])[None]
                alone = layers.of_sentences(layer, ids, torch.ones_like(ids))[0, -1]
                torch.testing.assert_close(beside[i, j], alone, atol=1e-5, rtol=1e-4)


def test_a_network_with_a_causal_mask_of_few_places_runs_in_parts(gpt2: Victim) -> None:
    network = gpt2.task.model(gpt2.sent)
    layers = FirstLayers(copy.deepcopy(network), [7, 8, 9], 32)
    mask = torch.ones(1, 1, 5, 5, dtype=torch.bool).tril()
    network.get_submodule("transformer.h.0.attn").register_buffer("bias", mask)
    short = FirstLayers(network, [7, 8, 9], 32)
    prefixes, tokens = torch.tensor([[0, 30, 41], [0, 52, 60]]), torch.arange(70, 77)
    for each in (tokens, torch.stack([tokens, tokens + 7])):
        whole = layers.of_extensions(layers.contexts, prefixes, each)
        parts = short.of_extensions(short.contexts, prefixes, each)
        torch.testing.assert_close(parts, whole, atol=1e-5, rtol=1e-4)


@pytest.mark.slow
def test_minilm_on_cola() -> None:
    minilm = hub("sentence-transformers/all-MiniLM-L6-v2", "nyu-mll/glue:cola")
    for rows in ([7], [100], [40, 41], [60, 61, 62]):
        seen, truth = minilm.capture(rows, FROZEN)
        guess = run(minilm, replace(seen, knowledge=Knowledge()))
        assert labelled(guess.guess) == labelled(truth)
        assert guess.confidence == ("certified",) * len(rows)


@pytest.mark.slow
def test_long_sentences_of_minilm_on_sst2() -> None:
    minilm = hub("sentence-transformers/all-MiniLM-L6-v2", "nyu-mll/glue:sst2", "validation")
    seen, truth = minilm.capture(list(range(16, 24)))
    guess = run(minilm, replace(seen, knowledge=Knowledge()))
    assert labelled(guess.guess) == labelled(truth)
    assert guess.confidence == ("certified",) * 8


@pytest.mark.slow
@pytest.mark.parametrize("data", ["film/enron-sentences", "Salesforce/wikitext:wikitext-2-raw-v1"])
def test_gpt2_on_sentences(data: str) -> None:
    gpt2 = hub("fedsim/gpt2-8k", data, max_length=32)
    for rows in ([7], list(range(50, 58))):
        seen, truth = gpt2.capture(rows, FROZEN)
        guess = run(gpt2, replace(seen, knowledge=Knowledge()))
        assert sentences(guess.guess) == sentences(truth)
        assert guess.confidence == ("certified",) * len(rows)


@pytest.mark.slow
@pytest.mark.parametrize("defenses", [(), ({"name": "freeze_embeddings"},)])
def test_llama_on_sentences(defenses: tuple[dict[str, object], ...]) -> None:
    llama = hub("fedsim/llama-8k", "film/enron-sentences", "validation[:60]", max_length=32)
    for rows in ([2], [3], list(range(50, 58))):
        seen, truth = llama.capture(rows, *defenses)
        guess = run(llama, replace(seen, knowledge=Knowledge()))
        assert sentences(guess.guess) == sentences(truth)
        assert guess.confidence == ("certified",) * len(rows)
