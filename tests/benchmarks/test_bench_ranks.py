"""The ranks are those of a plain search, and the updates those of a client."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import normalize

from attacks.tokens.subspace import Subspace
from benchmarks.bench import bench
from benchmarks.bench_ranks import BenchVictims, overlap, rank_tables
from benchmarks.rank_rows import (
    TOP,
    RankOutcome,
    RankRow,
    Subject,
    complaints,
    rank_row,
    reason,
)
from benchmarks.ranking import MATRICES, Ranking, ranks_at
from benchmarks.treatments import CLIP, TREATMENTS, Treatment, int8
from clients.train import LocalTrainer
from experiments.plan.cells import make_cells
from experiments.plan.config import Plan, parse_experiment
from fedsim.config.federation import FederationConfig
from fedsim.defenses import build_chain
from fedsim.errors import ConfigError
from fedsim.magnitudes import squared_norm
from fedsim.store.capture import Observation
from fedsim.types import Batch, Tensors

BY_NAME = {each.name: each for each in TREATMENTS}
FROZEN = {"name": "freeze_embeddings", "position": True}
SPLIT = "task.split=train[:3]"


def load(model: str, **federation: object) -> BenchVictims:
    task = {"model": model, "dataset": "sentences", "split": "train[:3]", "heldout_rows": 1}
    table = {"name": "ranks", "task": task, "federation": federation, "defenses": [FROZEN]}
    plan = Plan(name="ranks", experiments=(parse_experiment(table),))
    return BenchVictims.of(make_cells(plan, Path("ranks"))[0].config)


@pytest.fixture(scope="module")
def gpt2() -> BenchVictims:
    return load("tiny-gpt2")


@pytest.fixture(scope="module")
def ranking(gpt2: BenchVictims) -> Ranking:
    return Ranking(gpt2.client.task, gpt2.client.sent)


def observe(victims: BenchVictims, name: str, number: int = 0) -> tuple[Observation, Batch]:
    return victims.client.observe(BY_NAME[name], victims.batches[number], number, 0.01)


def plain(victims: BenchVictims) -> Tensors:
    return observe(victims, "none")[0].received


def test_ranks_count_the_nearer_false_tokens() -> None:
    axis = Subspace(torch.tensor([[1.0], [0.0]], dtype=torch.float64), 2)
    angles = torch.tensor([0.3, 0.0, 0.1, -0.2, 0.2, 1.5])
    inputs = torch.stack([angles.cos(), angles.sin()], 1)
    standing = torch.tensor([0, 1])
    # Nearer than 0.3 are 0.1 and twice 0.2; 0.0 is no false one.
    assert ranks_at(inputs, [axis], [0, 1], standing).tolist() == [[4.0], [1.0]]
    assert ranks_at(inputs, [axis], [5], torch.tensor([5])).tolist() == [[6.0]]


def test_a_span_that_says_nothing_gives_the_middle_rank() -> None:
    inputs = normalize(torch.randn(101, 4, generator=torch.Generator().manual_seed(0)), dim=1)
    nothing = Subspace(torch.zeros(4, 0, dtype=torch.float64), 4)
    assert ranks_at(inputs, [nothing], [7], torch.tensor([7])).tolist() == [[51.0]]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["none", "noise 1e-03", "dropout 0.1"])
def test_ranks_are_those_of_a_plain_search(gpt2: BenchVictims, ranking: Ranking, name: str) -> None:
    seen, batch = observe(gpt2, name)
    ranks, owners = ranking.ranks([ranking.spans(seen, batch)], [batch])
    update = seen.update(["transformer.h.0.attn.c_attn.weight"]).popitem()[1]
    network: Any = gpt2.client.task.model(seen.sent).double()
    words, places = network.transformer.wte.weight, network.transformer.wpe.weight
    ids = batch.inputs[0].tolist()
    expected = []
    for place in range(1, len(ids) - 1):
        with torch.no_grad():
            inputs = network.transformer.h[0].ln_1(words + places[place])
        row = []
        for part in (update[:, :128], update[:, 256:], update):
            basis = torch.linalg.svd(part, full_matrices=False)[0][:, : len(ids) - 1]
            rest = inputs - inputs @ basis @ basis.T
            sines = rest.norm(dim=1) / inputs.norm(dim=1)
            row.append(1.0 + int((sines < sines[ids[place]]).sum()))
        expected.append(row)
    same = ranks == torch.tensor(expected)
    # The first token's query has no gradient, so the last of the queries' directions is rounding,
    # which each build of LAPACK rounds its own way.
    assert same[:, 0].double().mean() > 0.9
    assert same[:, 1:].all()
    assert owners == [0] * (len(ids) - 2)
    assert (ranks.max() > 1) == (name != "none")


@pytest.mark.slow
def test_the_matrices_are_queries_values_and_all_of_them(
    gpt2: BenchVictims, ranking: Ranking
) -> None:
    seen, batch = observe(gpt2, "none")
    tokens = batch.inputs.shape[1]
    ranks = [each.rank for each in ranking.spans(seen, batch)]
    # The last token leaves no trace, and the first has nothing to choose from by its query.
    assert ranks == [tokens - 2, tokens - 1, tokens - 1]
    bert = load("tiny-bert")
    own = Ranking(bert.client.task, bert.client.sent)
    seen, batch = observe(bert, "none")
    query, value, whole = own.gradients(seen)
    update, layer = seen.update(), "bert.encoder.layer.0.attention.self"
    assert torch.equal(query, update[f"{layer}.query.weight"].T)
    assert torch.equal(value, update[f"{layer}.value.weight"].T)
    assert whole.shape == (query.shape[0], 3 * query.shape[1])
    assert own.words(batch).tolist() == [[False, *[True] * (batch.inputs.shape[1] - 2), False]]


def test_what_is_zero_or_not_finite_spans_nothing(gpt2: BenchVictims, ranking: Ranking) -> None:
    seen, batch = observe(gpt2, "none")
    for value in (0.0, float("nan")):
        blank = {name: torch.full_like(part, value) for name, part in seen.received.items()}
        broken = Observation(seen.key, seen.sent, blank, seen.kind, seen.knowledge)
        assert [each.rank for each in ranking.spans(broken, batch)] == [0, 0, 0]


@pytest.mark.slow
def test_tokens_of_one_batch_do_not_compete() -> None:
    victims = load("tiny-bert", batch_size=3)
    own = Ranking(victims.client.task, victims.client.sent)
    seen, batch = observe(victims, "none")
    ranks, owners = own.ranks([own.spans(seen, batch)], [batch])
    assert len(ranks) == len(owners) == int(own.words(batch).sum())
    # A word is in the span at other places too, where the batch holds another word at both.
    assert ranks[:, 1].median() == 1
    assert ranks[:, 1].max() < 20


@pytest.mark.some(5)
@pytest.mark.parametrize("treatment", TREATMENTS, ids=lambda each: each.name)
def test_every_treatment_changes_the_update(gpt2: BenchVictims, treatment: Treatment) -> None:
    seen, _ = observe(gpt2, treatment.name)
    before = plain(gpt2)
    assert list(seen.received) == list(before)
    same = all(torch.equal(before[name], value) for name, value in seen.received.items())
    assert same == (treatment.name == "none")
    told = [str(table["name"]) for table in seen.knowledge.defense or ()]
    noise = ["gaussian_noise"] * (treatment.noise > 0)
    own = [str(table["name"]) for table in treatment.defenses]
    assert told == ["freeze_embeddings", *own, *noise]
    assert seen.knowledge.local_steps == treatment.federation.get("local_steps", 1)


def test_an_update_is_what_the_client_sends(gpt2: BenchVictims) -> None:
    seen, batch = observe(gpt2, "random mask 50%", 1)
    chain = build_chain([FROZEN, {"name": "prune", "fraction": 0.5, "keep": "random"}], "defense")
    config, cpu = FederationConfig(batch_size=1), torch.device("cpu")
    trainer = LocalTrainer(gpt2.client.task, config, chain, gpt2.client.config.seed, cpu)
    update = trainer.run(gpt2.client.sent, gpt2.batches[1], 1, 1)
    assert torch.equal(batch.inputs, update.batch.inputs)
    assert all(torch.equal(seen.received[name], value) for name, value in update.tensors.items())
    for step in (1, 4):
        name = f"SGD 0.001, {step} step{'s' * (step > 1)}"
        moved, before = observe(gpt2, name)[0], plain(gpt2)
        assert moved.kind == "weights"
        assert moved.knowledge.learning_rate == 0.001
        error = max(
            float((value / 0.001 - step * before[key]).norm() / (step * before[key]).norm())
            for key, value in moved.update().items()
            if key.endswith("c_attn.weight")
        )
        assert error < (0.01 if step == 1 else 0.3)


def test_treatments_do_what_they_say(gpt2: BenchVictims, ranking: Ranking) -> None:
    before = plain(gpt2)
    noisy = observe(gpt2, "noise 0.1 rms")[0].received
    added = torch.cat([(noisy[name] - value).flatten() for name, value in before.items()])
    assert float(added.std()) == pytest.approx(0.1 * 0.01, rel=0.01)
    clipped = observe(gpt2, "clipping alone")[0].received
    assert float(squared_norm(clipped).sqrt()) == pytest.approx(CLIP, rel=1e-5)
    assert float(squared_norm(before).sqrt()) > CLIP
    halves = observe(gpt2, "float16 wire")[0].received
    assert {value.dtype for value in halves.values()} == {torch.float16}
    dropped = observe(gpt2, "dropout 0.1")[0]
    assert dropped.knowledge.train_mode
    largest = observe(gpt2, "keep top 1%")[0].received
    kept = torch.cat([value.flatten() for value in largest.values()]).count_nonzero()
    assert int(kept) == round(0.01 * sum(value.numel() for value in before.values()))


def test_int8_rounds_to_even_steps() -> None:
    value = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    step = value.abs().max() / 127
    sent = int8(value)
    assert float((sent - value).abs().max()) <= 0.501 * float(step)
    assert len(sent.unique()) <= 255
    assert torch.equal(int8(torch.zeros(3)), torch.zeros(3))


def test_a_row_sums_up() -> None:
    outcomes = [
        RankOutcome(1, 1, 1, words=(1.0,), seconds=2.0),
        RankOutcome(1, 0, 0, 1, 1, words=(0.5,), seconds=4.0),
        RankOutcome(1, refusal="too full"),
    ]
    row = rank_row("x", "all", [1, 1, 3, TOP + 1], [0, 0, 1, 2], outcomes)
    assert (row.median, row.worst, row.first, row.top) == (2, TOP + 1, 0.5, 0.75)
    assert row.low is not None
    assert row.high is not None
    assert 0 <= row.low <= 0.5 <= row.high <= 1
    assert (row.exact, row.certified, row.consistent, row.false) == (1 / 3, 1 / 3, 1 / 3, 1)
    assert (row.words, row.seconds) == (0.5, 2.0)
    assert row.words_low is None  # three batches are too few for an interval
    told = "shortlist only; span refuses 1 of 3: too full; span is wrong on 1 of 3"
    assert row.fails == told
    assert told in row.text()
    bare = rank_row("x", "W_Q", [1.0, 1.0], [0, 1], outcomes)
    assert (bare.exact, bare.fails) == (None, "")
    assert rank_row("x", "W_Q", [99.0, 1.0, 80.0], [0, 1, 2], outcomes).fails == "lost"
    assert list(complaints([RankOutcome(2, 2, expired=True)])) == ["out of time on 1 of 1"]


def test_overlap_counts_repeated_words() -> None:
    assert overlap([5, 5, 6], [6, 5, 7]) == 2 / 3
    assert overlap([], []) == 0
    assert overlap([1, 2], [2, 1]) == 1


def test_a_reason_is_a_few_words() -> None:
    message = "the gradient of 'h.0.attn' has rank 128 at width 128, and so on"
    assert reason(message) == "the gradient of 'h.0.attn' has rank 128 at width 128"


@pytest.mark.slow
def test_the_table_of_a_trained_model() -> None:
    names = ("none", "clipping alone", "dp_sgd, epsilon 1", "AdamW 5e-05, 1 step")
    subject, *rows = rank_tables([SPLIT], [BY_NAME[name] for name in names])
    assert isinstance(subject, Subject)
    assert (subject.sentences, subject.vocabulary, subject.width) == (3, 2000, 128)
    assert "freeze_embeddings" in subject.text()
    assert json.loads(json.dumps([vars(row) for row in rows]))[0]["treatment"] == "none"
    found = {(row.treatment, row.matrix): row for row in rows if isinstance(row, RankRow)}
    assert list(found) == [(name, matrix) for name in names for matrix in MATRICES]
    for name in names[:2]:
        assert [found[name, matrix].first for matrix in MATRICES] == [1, 1, 1]
        whole = found[name, "all"]
        assert (whole.exact, whole.certified, whole.false, whole.fails) == (1, 1, 0, "")
        assert whole.words == 1
        assert (whole.seconds or 0) > 0
    hidden = found["dp_sgd, epsilon 1", "all"]
    assert hidden.first < 0.05
    assert hidden.fails.startswith("lost; span is wrong on 3 of 3")
    signs = found["AdamW 5e-05, 1 step", "all"]
    assert signs.first < 0.5 < (signs.words or 0)
    assert signs.false == 0


@pytest.mark.parametrize(
    ("sets", "fault"),
    [
        (["task.model=lenet", "task.dataset=shapes"], "task.model: 'lenet' reads no text"),
        ([SPLIT, "federation.batch_size=4"], "federation.batch_size: 4 is more than the 3 rows"),
        (["federation.batchsize=4"], "federation.batchsize: no such option"),
    ],
)
def test_wrong_options_are_named(sets: list[str], fault: str) -> None:
    with pytest.raises(ConfigError, match=fault):
        next(rank_tables(sets))


@pytest.mark.slow
def test_a_layer_without_keys_is_refused() -> None:
    victims = load("tiny-bert")
    sent = {
        name: v for name, v in victims.client.sent.items() if "0.attention.self.key" not in name
    }
    with pytest.raises(
        ConfigError, match=r"'tiny-bert' has matrices of the shapes \[\(128, 128\), "
    ):
        Ranking(victims.client.task, sent)


def test_other_parts_take_no_options() -> None:
    with pytest.raises(ConfigError, match=r"--set 'a=1': only ranks takes overrides"):
        next(bench("text", ["a=1"]))
