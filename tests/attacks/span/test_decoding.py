"""Sentences of a causal model decoded from updates that a defense has blurred."""

from collections import Counter
from dataclasses import replace

import pytest
import torch

from attacks.base import Job, Reconstruction
from attacks.observed.spectrum import Spectrum, spectrum
from attacks.proofs.gradient_match import GradientMatcher
from attacks.proofs.gradient_pursuit import GradientPursuit, choose, fitted, less
from attacks.span.causal.prefix_fit import PrefixFit, non_negative
from attacks.span.exact.search import ExactSearch
from attacks.span.span import Span
from attacks.tokens.attacked_model import AttackedModel
from attacks.tokens.evidence import Evidence, Normal
from attacks.tokens.first_layers import FirstLayers, Layer
from attacks.tokens.layout import batch_of
from attacks.tokens.next_token_shift import DirectionalShift
from attacks.tokens.soft_traces import soft_traces
from fedsim.knowledge import Knowledge
from fedsim.tasks.text import TextTask
from tests.attacks.victims import Victim, lines, overlap, trained

FROZEN: dict[str, object] = {"name": "freeze_embeddings", "position": True}
SIGNS: dict[str, object] = {"name": "sign"}
NOISE: dict[str, object] = {"name": "gaussian_noise", "std": 1e-4}
TOP: dict[str, object] = {"name": "prune", "fraction": 0.9}
HALF: dict[str, object] = {"name": "prune", "fraction": 0.5, "keep": "random"}
ADAMW = {"protocol": "fedavg", "optimizer": "adamw", "learning_rate": 5e-5, "local_steps": 1}


def listed(pursuit: GradientPursuit) -> list[list[int]]:
    return [line.tolist() for line in pursuit.lines]


@pytest.mark.slow
@pytest.mark.parametrize("defense", [NOISE, SIGNS, TOP, HALF])
def test_words_of_a_blurred_update(gpt2: Victim, defense: dict[str, object]) -> None:
    shares, chance = [], []
    for row in (5, 7):
        seen, truth = gpt2.capture([row], FROZEN, defense)
        other = gpt2.capture([row + 1])[1]
        (guess,) = Span().reconstruct([seen], gpt2.task, [torch.Generator().manual_seed(0)], Job())
        shares.append(overlap(guess, lines(truth)))
        chance.append(overlap(guess, lines(other)))
        assert set(guess.confidence or ()) <= {"consistent", "guess"}
    # The built-in model is 64 wide, so that signs and pruning leave only part of the words.
    assert min(shares) > max(chance)
    assert sum(shares) > 0.5


@pytest.mark.slow
def test_frequent_words_are_a_batch_with_targets(gpt2: Victim) -> None:
    seen, _ = gpt2.capture([5], {"name": "gaussian_noise", "std": 10.0})
    prior = gpt2.capture([20, 21, 22])[1]
    seen = replace(seen, knowledge=Knowledge(num_examples=1, auxiliary=True))
    job = Job(auxiliary=lambda: prior)
    (recovered,) = Span().reconstruct([seen], gpt2.task, [torch.Generator().manual_seed(0)], job)
    assert "the most frequent words" in (recovered.note or "")
    assert recovered.guess.labels.shape == recovered.guess.inputs.shape


@pytest.mark.slow
def test_an_empty_sentence_in_the_span_is_no_answer(
    gpt2: Victim, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where the batch has slightly more tokens than the first layer's width."""
    seen, truth = gpt2.capture([5], FROZEN)
    nothing = batch_of([lines(truth)[0][::25]], gpt2.task, [-1])
    assert not any(gpt2.task.examples(nothing).words)
    reconstruction = Reconstruction(nothing, confidence=("in_span",))
    monkeypatch.setattr(ExactSearch, "run", lambda _: reconstruction)
    (guess,) = Span().reconstruct([seen], gpt2.task, [torch.Generator().manual_seed(0)], Job())
    assert overlap(guess, lines(truth)) > 0.5


@pytest.mark.slow
def test_the_first_step_of_adam_is_decoded(gpt2: Victim) -> None:
    seen, truth = gpt2.capture([5], FROZEN, **ADAMW)
    (guess,) = Span().reconstruct([seen], gpt2.task, [torch.Generator().manual_seed(0)], Job())
    assert overlap(guess, lines(truth)) > 0.3


def test_the_update_makes_the_private_words_likelier(gpt2: Victim) -> None:
    seen, truth = gpt2.capture([5], FROZEN)
    network = gpt2.task.model(seen.sent)
    update = {name: value.float() for name, value in seen.update().items()}
    shift = DirectionalShift.of(network, update, 32)
    line = truth.inputs[0]
    (shifted,) = shift.along([line])
    (plain,) = DirectionalShift.of(network, {}, 32).along([line])
    places = range(len(line) - 1)
    ranks = [
        [int((table[p] > table[p, line[p + 1]]).sum()) for p in places]
        for table in (shifted, plain)
    ]
    assert sum(ranks[0]) < sum(ranks[1]) / 2
    torch.testing.assert_close(
        shifted[2:3], shift.next_tokens(line[None, :3]), atol=0.05, rtol=0.01
    )


def test_the_statistic_of_a_true_input_is_what_noise_predicts() -> None:
    rng = torch.Generator().manual_seed(0)
    inputs = torch.randn(10, 96, generator=rng)
    slopes = torch.randn(10, 200, generator=rng)
    noise = 0.5 * torch.randn(96, 200, generator=rng)
    evidence = Evidence(Layer(("layer",)), spectrum(inputs.T @ slopes + noise, 32))
    true = evidence.statistic(inputs)
    false = evidence.statistic(torch.randn(200, 96, generator=rng))
    assert float(true.max()) < 0.3  # smaller than noise alone, as other errors are allowed for
    assert float(true.std()) < 0.3
    assert float(false.min()) > float(true.max()) + 1
    evidence.fit(true, false[:100], false[100:], 0.5)
    assert evidence.tells
    assert float(evidence.ratio(true).min()) > 0 > float(evidence.ratio(false).max())


def test_a_layer_that_does_not_tell_has_no_strong_opinion() -> None:
    basis = torch.linalg.qr(torch.randn(16, 4)).Q.double()
    evidence = Evidence(
        Layer(("layer",)), Spectrum(basis, torch.ones(4), torch.ones(4), 0.1, basis)
    )
    evidence.true = evidence.moved = evidence.absent = Normal(1.0, 0.5)
    assert not evidence.tells
    values = evidence.ratio(torch.linspace(-2, 4, 50))
    assert bool((values[:-1] >= values[1:]).all())


def test_a_batch_is_explained_by_its_own_sentences(gpt2: Victim) -> None:
    seen, truth = gpt2.capture([3, 4], FROZEN)
    others = gpt2.capture([20, 21, 22], FROZEN)[1]
    task = gpt2.task
    assert isinstance(task, TextTask)
    candidates = [torch.tensor(line) for line in (*lines(others), *lines(truth))]
    match = GradientMatcher.of(seen, task, torch.device("cpu"), signs=False)
    pursuit = choose(match, candidates, 2)
    assert Counter(map(tuple, listed(pursuit))) == Counter(map(tuple, lines(truth)))
    for index, line in enumerate(pursuit.lines):
        residual = pursuit.residual(index)
        own = match.gradient(line)
        weight = fitted(residual, [own])
        rest = less(residual, [own], weight)
        size = sum(float(value.square().sum()) for value in residual.values())
        assert sum(float(value.square().sum()) for value in rest.values()) < 1e-4 * size


@pytest.mark.parametrize("defense", [NOISE, SIGNS])
def test_prefixes_of_sentences_are_told_from_those_that_change_over(
    gpt2: Victim, defense: dict[str, object]
) -> None:
    seen, truth = gpt2.capture([3, 4], FROZEN, defense)
    task = gpt2.task
    assert isinstance(task, TextTask)
    signs = defense == SIGNS
    match = GradientMatcher.of(seen, task, torch.device("cpu"), signs=signs)
    first, second = lines(truth)
    mixed = [first[:6] + second[6:], second[:6] + first[6:]]
    fit = PrefixFit(match, seen, 2 * task.max_length, first[-1], task.max_length)
    assert fit.tells
    assert fit.chosen(2) == []  # as after none was worth keeping
    fit.add([*mixed, first, second])
    chosen = fit.chosen(2)
    assert Counter(line.ids for line in chosen) == Counter([tuple(first), tuple(second)])
    assert all(set(map(len, line.open)) <= {*range(len(line.ids))} for line in chosen)
    halves = PrefixFit(match, seen, 2 * task.max_length, first[-1], task.max_length)
    halves.add(mixed)  # the sentences themselves are missing: their beginnings are found
    starts = [line.ids for line in halves.chosen(2)]
    assert all(tuple(own[:4]) in {ids[:4] for ids in starts} for own in (first, second))


def test_non_negative_least_squares() -> None:
    rng = torch.Generator().manual_seed(0)
    parts = torch.randn(40, 12, generator=rng)
    true = torch.tensor([0, 2.0] * 6)
    goal = parts.T @ (parts @ true)
    torch.testing.assert_close(non_negative(parts.T @ parts, goal), true, atol=1e-3, rtol=0)
    weights = non_negative(parts.T @ parts, parts.T @ (parts @ (true - 0.5)))
    slope = parts.T @ (parts @ (weights - true + 0.5))
    assert float(weights.min()) == 0  # the conditions of Karush, Kuhn and Tucker
    assert float(slope.min()) > -1e-2
    assert float((slope * weights).abs().max()) < 1e-2
    nothing = torch.zeros(3)
    assert torch.equal(non_negative(torch.zeros(3, 3), nothing), nothing)


@pytest.mark.some(2)
@pytest.mark.parametrize(("defense", "apart"), [(NOISE, 0.5), (HALF, 0.2)])
def test_a_sentence_shows_in_what_the_others_leave(
    gpt2: Victim, defense: dict[str, object], apart: float
) -> None:
    seen, truth = gpt2.capture([3, 4], FROZEN, defense)
    task = gpt2.task
    assert isinstance(task, TextTask)
    match = GradientMatcher.of(seen, task, torch.device("cpu"), signs=False)
    pursuit = choose(match, [torch.tensor(line) for line in lines(truth)], 2)
    traces = soft_traces(AttackedModel.of(seen, task))
    index = listed(pursuit).index(lines(truth)[0])
    rest = traces.without(pursuit.part(index), pursuit.part(), task.max_length)
    assert rest.first is not None
    one, other = (
        rest.first.statistic(traces.layers.of_lines([rest.first.layer], line[None])[0])[0, 1:-1]
        for line in (pursuit.lines[index], pursuit.lines[1 - index])
    )
    assert float(one.median()) < float(other.median()) - apart


def test_words_told_of_longer_prefixes_are_those_of_a_fresh_start(gpt2: Victim) -> None:
    seen, truth = gpt2.capture([5], FROZEN)
    network = gpt2.task.model(seen.sent)
    update = {name: value.float() for name, value in seen.update().items()}
    shift, fresh = (DirectionalShift.of(network, update, 32) for _ in range(2))
    prefixes = truth.inputs[:, :3].repeat(2, 1)
    prefixes[1, 2] += 1
    shift.next_tokens(prefixes)
    longer = torch.cat([prefixes[[1, 0, 1]], torch.tensor([[7], [8], [9]])], 1)
    expected = fresh.next_tokens(longer)
    torch.testing.assert_close(shift.next_tokens(longer), expected, atol=0.05, rtol=0.01)


def test_a_network_without_a_cache_is_asked_anew() -> None:
    victim = trained("transformer3", 5)
    seen, truth = victim.capture([5])
    shift = DirectionalShift.of(victim.task.model(seen.sent), seen.update(), 32)
    short = shift.next_tokens(truth.inputs[:, :3])
    shift.next_tokens(truth.inputs[:, :4])
    torch.testing.assert_close(shift.next_tokens(truth.inputs[:, :3]), short)


def test_layers_of_the_second_block_are_found(gpt2: Victim) -> None:
    network = gpt2.task.model(gpt2.capture([3])[0].sent)
    layers = FirstLayers(network, [5, 6, 7], 16)
    assert len(layers.contexts) == 3
    assert all(".h.1." in layer.name for layer in layers.later)
