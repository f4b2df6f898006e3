"""The yardstick of the benchmark computes what the attack computes, and every part is there."""

from dataclasses import replace
from typing import get_args

import pytest
import torch

from attacks.base import Job
from attacks.observed.factored import Factored
from attacks.observed.replay import Replay
from attacks.texts.lamp import LAMP
from attacks.texts.language_prior import load_prior
from attacks.texts.matching import Distance, Matching, TextObjective
from benchmarks.bench import BENCHES
from benchmarks.bench_text import (
    CANDIDATES,
    RESTARTS,
    BenchVictim,
    matching_speed,
    victim_of,
)
from benchmarks.measure import PARTS
from benchmarks.naive_lamp import NaiveLAMP, NaiveMatching
from fedsim.config.cell import TaskConfig
from fedsim.data.rows import load_rows
from fedsim.models import TEXT_MODELS, transformer
from fedsim.tasks import initial_weights, make_task
from fedsim.tasks.text import TextTask

TINY = TaskConfig(model="tiny-bert", dataset="sentences", split="train[:3]")


@pytest.fixture(scope="module")
def victims() -> list[BenchVictim]:
    rows = load_rows(TINY.dataset, TINY.split, modality="text")
    task = make_task(TINY, rows)
    sent = initial_weights(task, TINY, seed=0)
    return [victim_of(task, sent, task.encode(rows.take([i])), i) for i in range(len(rows))]


@pytest.fixture(scope="module")
def prior(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A random language model over the vocabulary of tiny-bert."""
    tokenizer = transformer.tokenizer(str(TEXT_MODELS["tiny-bert"]))
    architecture = {"model_type": "gpt2", "n_embd": 16, "n_layer": 1, "n_head": 2}
    sizes = {"vocab_size": len(tokenizer), "n_positions": 32, "initializer_range": 0.5}
    folder = tmp_path_factory.mktemp("prior")
    network = transformer.build({**architecture, **sizes}, "language-modelling")
    network.save_pretrained(folder)  # type: ignore[operator]
    tokenizer.save_pretrained(str(folder))
    return str(folder)


def factored(victim: BenchVictim) -> Factored:
    network = victim.task.model(victim.seen.sent)
    return Factored(Replay(victim.task, network, dict(network.named_parameters())))


@pytest.mark.parametrize("distance", get_args(Distance))
def test_both_sides_measure_one_distance(victims: list[BenchVictim], distance: Distance) -> None:
    victim, model = victims[0], factored(victims[0])
    compared = {k: v for k, v in victim.seen.received.items() if k in model.names and v.any()}
    network = victim.task.model(victim.seen.sent)
    naive = NaiveMatching(network, compared, victim.batch.labels, distance)
    matching = Matching(model, [victim.seen.update()], TextObjective(distance), 20)
    width = network.get_input_embeddings().embedding_dim  # type: ignore[operator]
    rng = torch.Generator().manual_seed(3)
    words = torch.randn(1, *victim.batch.inputs.shape, width, generator=rng)[None]
    point = words.clone().requires_grad_()
    value = matching(point, victim.batch)
    (slope,) = torch.autograd.grad(value.sum(), point)
    expected = naive(words[0, 0].clone().requires_grad_(), create_graph=False)
    torch.testing.assert_close(value[0, 0], expected, rtol=1e-4, atol=0)
    error = (slope[0, 0] - naive.slope(words[0, 0])).norm() / slope.norm()
    assert error < 1e-3


@pytest.mark.slow
def test_the_naive_search_takes_the_same_steps(victims: list[BenchVictim], prior: str) -> None:
    task = victims[0].task
    assert isinstance(task, TextTask)
    options = LAMP(steps=10, starts=2, proposals=8, discrete_every=4, prior=prior)
    names = factored(victims[0]).names
    compared = [k for k, v in victims[0].seen.received.items() if k in names and v.any()]
    language = load_prior(prior, task, torch.device("cpu"))
    naive = NaiveLAMP(options, task, language, compared)
    found = set()
    for number, victim in enumerate(victims[:2]):
        (recovered,) = options.reconstruct([victim.seen], task, [_rng(number)], Job())
        ids = naive.attack(victim.seen, _rng(number))
        assert ids.tolist() == recovered.guess.inputs.tolist()
        found.add(tuple(ids[0].tolist()))
    (started,) = replace(options, steps=1, discrete="none").reconstruct(
        [victims[0].seen], task, [_rng(0)], Job()
    )
    assert tuple(started.guess.inputs[0].tolist()) not in found
    assert len(found) == 2


def _rng(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_every_part_has_its_measures() -> None:
    assert (*BENCHES, "reference") == PARTS


@pytest.mark.slow
def test_each_distance_has_its_measures(victims: list[BenchVictim]) -> None:
    measures = list(matching_speed("tiny", victims[0], repeats=1))
    assert len({each.name for each in measures}) == len(measures) == 5 * len(get_args(Distance))
    assert all(each.value > 0 for each in measures)
    assert {each.goal for each in measures} == {"-", ">= 3", ">= 5", ">= 6"}
    names = " ".join(each.name for each in measures)
    assert f"{RESTARTS} restarts" in names
    assert f"{CANDIDATES} candidates" in names
