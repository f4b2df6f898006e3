"""Words of a batch with probabilities that mean what they say."""

from dataclasses import replace

import pytest
import torch
from scipy.stats import binom
from torch import Tensor

from attacks.tokens.attacked_model import AttackedModel
from attacks.tokens.soft_traces import SoftTraces, soft_traces
from attacks.tokens.word_posterior import likely_words, note_of, posterior
from fedsim.store.capture import Observation
from fedsim.tasks.text import TextTask
from tests.attacks.adapted import adapted
from tests.attacks.victims import Victim, lines, tokens, trained

FROZEN: dict[str, object] = {"name": "freeze_embeddings", "position": True}
HELD_OUT = range(20, 40)


def drawn(seed: int, apart: float, size: int = 4000) -> tuple[Tensor, set[int]]:
    """Statistics ``(position, token)`` of one sentence of 12 words, and its words."""
    rng = torch.Generator().manual_seed(seed)
    found = torch.randn(20, size, generator=rng)
    words = torch.randperm(size, generator=rng)[:12]
    found[torch.arange(12), words] -= apart
    return found, set(words.tolist())


@pytest.mark.some(3)
@pytest.mark.parametrize("apart", [2.0, 4.0, 6.0])
def test_probabilities_are_no_exaggeration(apart: float) -> None:
    said = right = called = 0.0
    for seed in range(20):
        statistics, words = drawn(seed, apart)
        found = posterior(statistics, 1)
        sure = torch.nonzero(found >= 0.5)[:, 0].tolist()
        called += len(sure)
        right += sum(word in words for word in sure)
        said += float(found[sure].sum())
    assert not called or right >= binom.ppf(0.005, int(called), said / called)
    assert right >= {2.0: 0, 4.0: 15, 6.0: 180}[apart]


def test_nothing_is_found_in_noise() -> None:
    called = 0
    for seed in range(10):
        statistics, _ = drawn(seed, 0.0)
        called += int((posterior(statistics, 1) >= 0.5).sum())
    assert called <= 3


@pytest.mark.slow
def test_words_of_held_out_rows() -> None:
    victim: Victim = trained("tiny-gpt2", 60)
    task = victim.task
    assert isinstance(task, TextTask)
    bins: dict[tuple[float, float], list[float]] = {(0.5, 0.9): [0, 0, 0], (0.9, 1.01): [0, 0, 0]}
    every = 0
    for row in HELD_OUT:
        seen, truth = victim.capture([row], FROZEN, {"name": "gaussian_noise", "std": 1e-3})
        traces = soft_traces(AttackedModel.of(seen, task))
        true = tokens(truth)
        every += len(true)
        found = likely_words(traces, 1)
        assert [p for _, p in found] == sorted((p for _, p in found), reverse=True)
        for (low, high), count in bins.items():
            inside = [(word, p) for word, p in found if low <= p < high]
            count[0] += len(inside)
            count[1] += sum(word in true for word, _ in inside)
            count[2] += sum(p for _, p in inside)
    for called, right, said in bins.values():
        if called:
            assert right >= binom.ppf(0.005, int(called), said / called)
    assert bins[0.9, 1.01][1] > 0.2 * every


def test_the_note() -> None:
    task = trained("tiny-gpt2", 1).task
    assert isinstance(task, TextTask)
    ids = task.tokens(["the cat"])[0][1:3]
    words = [task.text([one]).strip() for one in ids]
    assert note_of([], task) == ""
    assert note_of([(task.spec.special_ids[0], 0.99)], task) == ""
    assert note_of([(ids[0], 0.95), (ids[1], 0.6)], task) == f"1 word with p >= 0.9: {words[0]!r}"
    both = f"2 words with p >= 0.5: {words[0]!r}, {words[1]!r}"
    assert note_of([(ids[0], 0.7), (ids[1], 0.6)], task) == both
    many = note_of([(ids[0], 0.95)] * 40, task)
    assert many.startswith("40 words with p >= 0.9: ")
    assert many.endswith(", ...")
    assert many.count(repr(words[0])) == 12


@pytest.mark.some(3)
@pytest.mark.parametrize("rank", [4, 8, 12])
def test_no_word_is_likely_where_adapters_have_no_room(rank: int) -> None:
    """``B`` is 0 at first, so that ``A x`` alone leaks; a span of all of it holds any word."""
    victim = adapted("tiny-gpt2", rank, 0)
    for row in range(6):
        seen, truth = victim.capture([row])
        assert len(lines(truth)[0]) > rank
        assert not likely_words(traces_of(victim, seen), 1)


@pytest.mark.slow
def test_words_are_likely_where_adapters_have_room() -> None:
    victim, called, right = adapted("tiny-gpt2", 32, 0), 0, 0
    for row in range(6):
        seen, truth = victim.capture([row])
        sure = [word for word, p in likely_words(traces_of(victim, seen), 1) if p >= 0.9]
        called, right = called + len(sure), right + sum(word in tokens(truth) for word in sure)
    assert right >= max(1, 0.88 * called)


def traces_of(victim: Victim, seen: Observation) -> SoftTraces:
    assert isinstance(victim.task, TextTask)
    return soft_traces(AttackedModel.of(seen, victim.task))


@pytest.mark.slow
@pytest.mark.parametrize("rank", [4, 8, 16])
def test_no_word_is_likely_where_adapters_were_merged(rank: int) -> None:
    """``W + B A`` moves along the random rows of ``A``, whatever the inputs are."""
    victim, rng = trained("tiny-gpt2", 60), torch.Generator().manual_seed(rank)
    for row in range(4):
        seen, _ = victim.capture([row])
        merged = {name: torch.zeros_like(value) for name, value in seen.received.items()}
        for name in (each for each in merged if each.endswith("c_attn.weight")):
            down = torch.randn(rank, seen.received[name].shape[0], generator=rng)
            merged[name] = down.T @ down @ seen.received[name]
        traces = traces_of(victim, replace(seen, received=merged))
        assert traces.foreign
        assert not likely_words(traces, 1)
        assert not traces_of(victim, seen).foreign
