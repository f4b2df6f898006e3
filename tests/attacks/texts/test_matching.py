"""The factored distance against the naive one, and what it is at the truth."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from attacks.observed.factored import Factored
from attacks.observed.replay import Replay
from attacks.texts import dense
from attacks.texts.dense import (
    Rule,
    coordinate_sum,
    difference,
    soft_sign,
    soft_square,
    square_within,
)
from attacks.texts.matching import Matching, TextObjective, make_targets
from fedsim.config.cell import TaskKind
from fedsim.tasks.base import Network
from fedsim.tasks.language_modelling import IGNORED
from fedsim.tasks.text_classification import TextClassification
from fedsim.types import Batch, Tensors
from tests.attacks.texts import naive_matching as naive
from tests.attacks.texts.naive_matching import (
    CASES,
    CLASSIFY,
    Setting,
    factored,
    private,
    rng,
    sent,
    setting,
    small,
    stacked,
    words,
)

OBJECTIVES = {
    "cosine": TextObjective(),
    "l2": TextObjective("l2"),
    "l2l1": TextObjective("l2l1"),
    "support-cosine": TextObjective(form="support"),
    "support-l2": TextObjective("l2", form="support"),
    "support-l2l1": TextObjective("l2l1", form="support"),
    "tanh": TextObjective(form="tanh"),
}
SHAPES = [(3, 8, 1), (1, 8, 3)]
"""Victims, candidates, examples."""

GRID = [(*CASES[i], shape) for i in (0, 3) for shape in SHAPES]
GRID += [(*CASES[i], (3, 2, 3)) for i in (1, 2, 4)]


def check(objective: TextObjective, case: Setting, ranks: list[int], tolerance: float) -> None:
    model = factored(case.model, case.kind, case.guess.dtype)
    victims, candidates = case.guess.shape[:2]
    places = [(v, (0, candidates // 2, candidates - 1)[v]) for v in range(victims)]
    places += [(0, candidates - 1)] if victims == 1 < candidates else []
    expected = {place: case.naive(objective, *place) for place in places}
    for rank in ranks:
        values = Matching(model, case.observed, objective, rank)(case.guess, case.batch)
        assert values.shape == (victims, candidates)
        (slopes,) = torch.autograd.grad(values.sum(), case.guess)
        for place, (value, slope) in expected.items():
            assert abs(values[place].detach() / value - 1) < tolerance
            assert (slopes[place] - slope).norm() < tolerance * slope.norm()


@pytest.mark.some(5)
@pytest.mark.parametrize("name", OBJECTIVES)
@pytest.mark.parametrize(("model", "kind", "shape"), GRID)
def test_equals_the_double_backward(
    model: str, kind: TaskKind, shape: tuple[int, int, int], name: str
) -> None:
    objective = OBJECTIVES[name]
    case = setting(model, kind, objective, shape, torch.float64)
    # A gradient has a rank of 13 at most, but of 26 where a layer is used twice: no factors.
    check(objective, case, [0] if objective.needs_coordinates else [16, 0], 1e-9)


@pytest.mark.some(3)
@pytest.mark.parametrize("name", OBJECTIVES)
def test_equals_the_double_backward_in_single_precision(name: str) -> None:
    objective = OBJECTIVES[name]
    case = setting(*CASES[3], objective, (3, 2, 3), torch.float32)
    check(objective, case, [0] if objective.needs_coordinates else [16, 0], 1e-4)


@pytest.mark.parametrize("model", ["electra", "roberta", "distilbert", "mpnet"])
def test_other_families(model: str) -> None:
    for name in ("cosine", "l2l1"):
        case = setting(model, CLASSIFY, OBJECTIVES[name], (3, 1, 3), torch.float64)
        check(OBJECTIVES[name], case, [16], 1e-9)


@pytest.mark.parametrize(("model", "kind"), CASES)
def test_compares_all_but_the_words_and_what_is_zero(model: str, kind: TaskKind) -> None:
    network = factored(model, kind, torch.float64).network
    every = [name for name, _ in network.named_parameters()]
    expected = naive.compared(every)
    assert factored(model, kind, torch.float64).names == set(expected)
    assert factored(model, kind, torch.float32).names == set(expected)
    # One key bias for each layer; GPT-2's is a part of a longer vector.
    zero = {"bert": 2, "albert": 1, "gpt2": 0}[model]
    assert len(every) - len(expected) == 1 + zero


def test_key_biases_do_not_count() -> None:
    model, objective = factored("bert", CLASSIFY, torch.float64), OBJECTIVES["tanh"]
    case = setting("bert", CLASSIFY, objective, (1, 1, 1), torch.float64)
    (seen,) = case.observed
    loud = {k: torch.ones_like(v) if k.endswith("key.bias") else v for k, v in seen.items()}
    for form in OBJECTIVES.values():
        values = [Matching(model, [own], form, 8)(case.guess, case.batch) for own in (seen, loud)]
        assert torch.equal(*values)


def test_frozen_parameters_do_not_count() -> None:
    objective = OBJECTIVES["cosine"]
    case = setting("bert", CLASSIFY, objective, (3, 1, 3), torch.float64)
    task = small("bert")
    network = task.build().double()
    frozen = ("bert.embeddings", "bert.encoder.layer.0", "classifier.bias")
    kept: Tensors = {k: p for k, p in network.named_parameters() if not k.startswith(frozen)}
    model = Factored(Replay(task, network, kept))
    assert model.names == set(naive.compared(kept))
    case.observed = [{name: tensor[name] for name in kept} for tensor in case.observed]
    for objective in (OBJECTIVES["cosine"], OBJECTIVES["l2"], OBJECTIVES["tanh"]):
        values = Matching(model, case.observed, objective, 16)(case.guess, case.batch)
        expected = torch.stack([case.naive(objective, victim, 0)[0] for victim in range(3)])
        torch.testing.assert_close(values[:, 0], expected, rtol=1e-9, atol=0)


def test_leaves_the_network_as_it_was() -> None:
    task, network = small("gpt2"), small("gpt2").build()
    before = {name: value.clone() for name, value in network.state_dict().items()}
    (batch, *_) = private(CLASSIFY, 3)
    loss = task.loss(network, batch).detach()
    model = Factored(Replay(task, network, dict(network.named_parameters())))
    guess = words(model, 1, 1, 3, 6)
    model(guess[0], batch)
    assert torch.equal(task.loss(network, batch), loss)
    for name, value in network.state_dict().items():
        assert value.dtype == before[name].dtype
        assert torch.equal(value, before[name])


def at_the_truth(
    model: str,
    kind: TaskKind,
    objective: TextObjective,
    dtype: torch.dtype,
    seen: Tensors | None = None,
) -> tuple[float, float]:
    """The distance at the private words, and the least of 8 random guesses."""
    (_, batch, _) = private(kind, 3)
    if kind == "language-modelling":
        assert batch.mask is not None
        batch = replace(batch, labels=torch.where(batch.mask == 0, IGNORED, batch.inputs))
    own = factored(model, kind, dtype)
    observed = sent(model, kind, batch, objective, dtype) if seen is None else seen
    table = own.network.get_input_embeddings().weight  # type: ignore[operator]
    private_words = table[batch.inputs][None, None].detach()
    guess = torch.cat([private_words, words(own, 1, 8, *batch.inputs.shape).detach()], dim=1)
    (values,) = Matching(own, [observed], objective, 16)(guess, stacked([batch], 9))
    return float(values[0].detach()), float(values[1:].detach().min())


@pytest.mark.some(3)
@pytest.mark.parametrize(("model", "kind"), CASES)
def test_zero_at_the_truth(model: str, kind: TaskKind) -> None:
    for name in ("cosine", "support-cosine"):
        value, elsewhere = at_the_truth(model, kind, OBJECTIVES[name], torch.float32)
        assert abs(value) < 1e-5
        assert elsewhere > 1e-3
    (_, batch, _) = private(kind, 3)
    square = sum(float(v.square().sum()) for v in sent(model, kind, batch).values())
    for name in ("l2", "l2l1", "support-l2", "support-l2l1"):
        value, elsewhere = at_the_truth(model, kind, OBJECTIVES[name], torch.float64)
        assert abs(value) < 1e-9 * square
        assert elsewhere > 1e-3 * square


@pytest.mark.parametrize(("model", "kind"), CASES)
def test_signs_are_nearest_at_the_truth(model: str, kind: TaskKind) -> None:
    # No gradient has a tanh of +-1 everywhere, so this one is not 0.
    value, elsewhere = at_the_truth(model, kind, OBJECTIVES["tanh"], torch.float64)
    assert 0 < value < 0.7 * elsewhere


@pytest.mark.parametrize("name", ["cosine", "support-cosine", "tanh"])
def test_free_of_the_scale_of_both_gradients(name: str) -> None:
    objective = OBJECTIVES[name]
    case = setting("bert", CLASSIFY, objective, (3, 1, 3), torch.float64)
    values = Matching(factored("bert", CLASSIFY, torch.float64), case.observed, objective, 16)(
        case.guess, case.batch
    )
    task = small("bert")
    network = task.build().double()
    louder = Replay(Louder(task.spec, cast(Any, None)), network, dict(network.named_parameters()))
    scaled = [{key: 1000 * value for key, value in tensor.items()} for tensor in case.observed]
    again = Matching(Factored(louder), scaled, objective, 16)(case.guess, case.batch)
    torch.testing.assert_close(again, values, rtol=1e-9, atol=0)


class Louder(TextClassification):
    def loss(self, network: Network, batch: Batch) -> Tensor:
        return 0.01 * super().loss(network, batch)


@pytest.mark.parametrize("name", ["cosine", "support-cosine", "tanh"])
def test_victims_may_predict_unequally_many_tokens_where_scale_is_free(name: str) -> None:
    objective = OBJECTIVES[name]
    case = setting("gpt2", "language-modelling", objective, (3, 1, 1), torch.float64)
    case.batches = [replace(batch, labels=batch.inputs) for batch in case.batches]
    case.observed = [sent("gpt2", "language-modelling", b, objective) for b in case.batches]
    case.batch = stacked(case.batches, 1)
    assert (case.batch.labels != IGNORED).sum(1).tolist() == [6, 4, 5]
    check(objective, case, [16], 1e-9)


@pytest.mark.some(3)
@pytest.mark.parametrize("chosen", [slice(1, 3), slice(0, 1)])
@pytest.mark.parametrize("name", ["cosine", "l2", "support-cosine", "tanh"])
def test_only_some_victims(name: str, chosen: slice) -> None:
    objective, model = OBJECTIVES[name], factored("bert", CLASSIFY, torch.float64)
    case = setting("bert", CLASSIFY, objective, (3, 2, 3), torch.float64)
    batch, guess = stacked(case.batches[chosen], 2), case.guess.detach()[chosen]
    # Where one victim's gradient has no factors, none is kept as such.
    noise = {k: torch.randn(v.shape, generator=rng()) for k, v in case.observed[1].items()}
    for observed in (case.observed, [case.observed[0], noise, case.observed[2]]):
        every = Matching(model, observed, objective, 16)
        alone = Matching(model, observed[chosen], objective, 16)(guess, batch)
        torch.testing.assert_close(every(guess, batch, chosen), alone, rtol=1e-9, atol=0)
        values = every(case.guess, case.batch)[chosen]
        torch.testing.assert_close(alone, values, rtol=1e-9, atol=0)


def test_without_a_graph_the_values_are_the_same() -> None:
    for objective in OBJECTIVES.values():
        case = setting("bert", CLASSIFY, objective, (1, 3, 3), torch.float64)
        matching = Matching(factored("bert", CLASSIFY, torch.float64), case.observed, objective, 16)
        values = matching(case.guess.detach(), case.batch, create_graph=False)
        torch.testing.assert_close(values, matching(case.guess, case.batch))


def test_nothing_but_the_words_was_sent() -> None:
    task, network = small("bert"), small("bert").build()
    word = "bert.embeddings.word_embeddings.weight"
    model = Factored(Replay(task, network, {word: network.get_parameter(word)}))
    assert model.names == frozenset()


@pytest.mark.parametrize(("model", "kind"), CASES)
def test_token_ids_of_the_batch_are_not_read(model: str, kind: TaskKind) -> None:
    objective = OBJECTIVES["cosine"]
    case = setting(model, kind, objective, (1, 1, 3), torch.float64)
    matching = Matching(factored(model, kind, torch.float64), case.observed, objective, 16)
    values = [
        matching(case.guess, replace(case.batch, inputs=torch.full_like(case.batch.inputs, token)))
        for token in (0, 7)
    ]
    torch.testing.assert_close(values[0], values[1], rtol=1e-9, atol=0)
    torch.testing.assert_close(matching(case.guess, case.batch), values[1], rtol=1e-9, atol=0)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_a_tensor_received_as_zero(name: str) -> None:
    zeroed(name, "layer.0.attention.self.query.weight", "layer.1.output.dense.bias")


@pytest.mark.parametrize("name", OBJECTIVES)
def test_layers_alike_received_as_zero(name: str) -> None:
    zeroed(name, "intermediate.dense.weight")


def zeroed(name: str, *endings: str) -> None:
    """Global pruning does that to the tensors of small gradients."""
    objective = OBJECTIVES[name]
    case = setting("bert", CLASSIFY, objective, (1, 1, 3), torch.float32)
    (seen,) = case.observed
    case.observed = [{k: 0 * v if k.endswith(endings) else v for k, v in seen.items()}]
    values = Matching(factored("bert", CLASSIFY, torch.float32), case.observed, objective, 16)(
        case.guess, case.batch
    )
    (gradient,) = torch.autograd.grad(values.sum(), case.guess)
    expected, slope = case.naive(objective, 0, 0)
    assert values.item() == pytest.approx(expected.item(), rel=1e-4)
    assert (gradient[0, 0] - slope).norm() < 1e-4 * slope.norm()


@pytest.mark.some(3)
@pytest.mark.parametrize("surplus", [60.0, 200.0])
@pytest.mark.parametrize("name", OBJECTIVES)
def test_finite_where_the_gradient_of_a_guess_vanishes(name: str, surplus: float) -> None:
    values, slope, _ = saturated(name, surplus)
    assert values.isfinite().all()
    assert slope.isfinite().all()


@pytest.mark.parametrize("name", OBJECTIVES)
def test_a_guess_without_a_gradient_is_far(name: str) -> None:
    """All sums are those of ``G = 0``; a mean over tensors is 1, as for a random gradient."""
    values, _, seen = saturated(name, 200.0)
    objective = OBJECTIVES[name]
    zero = {key: torch.zeros_like(seen[key]) for key in naive.compared(seen)}
    expected = 1.0 if objective.is_mean else float(naive.distance(zero, seen, objective, 6))
    assert values.flatten().tolist() == pytest.approx([expected] * 2, rel=1e-5)


@cache
def certain(surplus: float) -> Factored:
    """A network that gives class 1 to every text."""
    task = small("bert")
    network = task.build()
    with torch.no_grad():
        network.get_parameter("classifier.bias")[1] += surplus
    return Factored(Replay(task, network, dict(network.named_parameters())))


def saturated(name: str, surplus: float) -> tuple[Tensor, Tensor, Tensors]:
    """Distances of guesses that the network classifies with certainty, and their slope."""
    objective = OBJECTIVES[name]
    case = setting("bert", CLASSIFY, objective, (1, 2, 3), torch.float32)
    model = certain(surplus)
    assert model.names == set(naive.compared(case.observed[0]))
    batch = replace(case.batch, labels=torch.ones_like(case.batch.labels))
    values = Matching(model, case.observed, objective, 16)(case.guess, batch)
    (slope,) = torch.autograd.grad(values.sum(), case.guess)
    return values.detach(), slope, case.observed[0]


def noisy(value: Tensor, seed: int) -> Tensor:
    return value + 1e-3 * torch.randn(value.shape, generator=rng(seed), dtype=value.dtype)


def test_targets_are_factors_where_all_of_a_group_have_some() -> None:
    a, b, c = ("first", "second", "bias")
    gradients = []
    for seed in range(2):
        left, right = torch.randn(2, 2, 3, 20, generator=rng(seed), dtype=torch.float64)
        gradients.append({a: left[0].T @ right[0], b: left[1].T @ right[1], c: left[0, :1]})
    like = torch.zeros((), dtype=torch.float64)

    def targets(seen: list[Tensors], rank: int = 4, *dead: str) -> Any:
        living = frozenset({a, b, c} - set(dead))
        return make_targets([(a, b), (c,)], frozenset({a, b}), living, seen, rank, like)

    def matrices(seen: list[Tensors]) -> Tensor:
        return torch.stack([torch.stack([own[name] for own in seen]) for name in (a, b)])

    plain = targets(gradients)
    assert plain[a, b].full is None
    left, right = plain[a, b].factors
    assert left.shape == right.shape == (2, 2, 20, 4)
    torch.testing.assert_close(left @ right.mT, matrices(gradients))
    assert plain[c,].factors is None
    assert torch.equal(plain[c,].full, torch.stack([own[c].flatten() for own in gradients])[None])
    assert targets(gradients, 2)[a, b].factors is None

    spoilt = [gradients[0], {**gradients[1], b: noisy(gradients[1][b], 9)}]
    whole = targets(spoilt)[a, b]
    assert whole.factors is None
    torch.testing.assert_close(whole.full, matrices(spoilt))
    torch.testing.assert_close(whole.norm, matrices(spoilt).norm(dim=(2, 3)))
    only = whole.only(slice(1, 2))
    assert torch.equal(only.full, whole.full[:, 1:])
    assert torch.equal(only.norm, whole.norm[:, 1:])

    silent = [gradients[0], {**gradients[1], a: 0 * gradients[1][a]}]
    assert targets(silent)[a, b].alive.tolist() == [[True, False], [True, True]]
    assert targets(gradients, 4, b, c)[a, b].alive.tolist() == [[True, True], [False, False]]
    assert targets(gradients, 4, b, c)[c,].alive.tolist() == [[False, False]]


RULES: dict[str, tuple[Rule, Callable[[Tensor, Tensor], Tensor]]] = {
    "difference": (
        difference(0.3, within=False),
        lambda g, o: (g - o).square() + 0.3 * (g - o).abs(),
    ),
    "difference-within": (
        difference(0.3, within=True),
        lambda g, o: ((g - o).square() + 0.3 * (g - o).abs()) * (o != 0),
    ),
    "square-within": (square_within, lambda g, o: g.square() * (o != 0)),
    "soft-sign": (soft_sign, lambda g, o: g.tanh() * o.sign()),
    "soft-square": (soft_square, lambda g, o: g.tanh().square()),
}


@pytest.mark.parametrize("cached", [1, 70, 2**18])
@pytest.mark.parametrize("name", RULES)
def test_sums_over_coordinates(name: str, cached: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A matrix has 5 x 6 coordinates: one candidate at a time, two, or all five."""
    monkeypatch.setattr(dense, "_CACHED", cached)
    rule, formula = RULES[name]
    left = torch.randn(2, 5, 3, 5, generator=rng(1), dtype=torch.float64, requires_grad=True)
    right = torch.randn(2, 5, 3, 6, generator=rng(2), dtype=torch.float64, requires_grad=True)
    observed = torch.randn(2, 5, 6, generator=rng(3), dtype=torch.float64)
    observed = observed * (observed.abs() > 0.5)
    kept = observed.clone()
    weight = torch.randn(2, 5, generator=rng(4), dtype=torch.float64)
    values = coordinate_sum(left, right, observed, rule)
    expected = formula(left.mT @ right, observed[:, None]).sum((2, 3))
    torch.testing.assert_close(values, expected)
    slopes = torch.autograd.grad((weight * values).sum(), (left, right))
    torch.testing.assert_close(
        slopes, torch.autograd.grad((weight * expected).sum(), (left, right))
    )
    assert torch.equal(observed, kept)
