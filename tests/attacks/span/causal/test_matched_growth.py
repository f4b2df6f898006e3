"""Sentences grown by the update of all adapters."""

import copy
from dataclasses import replace
from typing import Any, cast

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from attacks.base import Job
from attacks.span.causal.matched_growth import Grown, MatchedGrowth, swap_suffixes
from attacks.span.causal.whitening import Whitening
from attacks.span.span import Span
from attacks.tokens.next_token_shift import DirectionalShift, head_weight, next_word_weights
from attacks.tokens.pursuit import noisy_rows
from fedsim.config.federation import FederationConfig
from fedsim.knowledge import Knowledge
from fedsim.models.adapters import is_second_factor
from tests.attacks.adapted import adapted, dictionary, run, sentences
from tests.attacks.victims import hub

STEP = {"protocol": "fedavg", "learning_rate": 1e-3, "optimizer": "adamw", "local_steps": 1}


def measured(true: int, noise: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Sums of the first rows of a dictionary with noise, and the dictionary."""
    atoms, rng = dictionary(500, 64), torch.Generator().manual_seed(1)
    sums = torch.randn(24, true, generator=rng) @ atoms[:true]
    return sums + noise * torch.randn(24, 64, generator=rng), atoms


def test_rows_are_found_until_noise_is_left() -> None:
    sums, atoms = measured(10, 0.5)
    assert sorted(noisy_rows(sums, atoms, 40)) == list(range(10))
    assert len(noisy_rows(sums, atoms, 4)) == 4


@pytest.mark.parametrize("true", [0, 1])
def test_noise_alone_has_no_rows(true: int) -> None:
    sums, atoms = measured(true, 0.5)
    assert noisy_rows(sums, atoms, 40) == list(range(true))
    assert noisy_rows(torch.zeros(4, 64), atoms, 40) == []


def test_evened_directions_are_those_of_the_update() -> None:
    rng = torch.Generator().manual_seed(0)
    left, right = (torch.linalg.qr(torch.randn(n, 4, generator=rng)).Q for n in (8, 6))
    sizes = torch.tensor([100.0, 50.0, 25.0, 1e-4])
    update = {"a": left * sizes @ right.T, "b": torch.ones(3), "c": torch.zeros(2, 2)}
    whitened = Whitening.of(update, 0.3)(update)
    assert not whitened["b"].any()
    assert not whitened["c"].any()
    strengths = torch.linalg.svdvals(whitened["a"])
    assert float(whitened["a"].norm()) == pytest.approx(48**0.5, rel=1e-5)
    assert float(strengths[0] / strengths[2]) < 2.5  # before: 4
    assert float(strengths[3]) < 1e-4
    assert torch.allclose(whitened["a"] @ right[:, 3], torch.zeros(8), atol=1e-3)


@pytest.mark.parametrize("shape", [(4, 30), (30, 4)])
def test_what_is_left_is_the_evened_rest_and_orthogonal_to_what_was_found(
    shape: tuple[int, int],
) -> None:
    rng = torch.Generator().manual_seed(0)
    gradients = [{"a": torch.randn(shape, generator=rng)} for _ in range(2)]
    update = {
        "a": 3 * gradients[0]["a"] - 2 * gradients[1]["a"] + torch.randn(shape, generator=rng)
    }
    evening = Whitening.of(update, 0.3)
    residual = evening.without({**evening(update), "b": torch.ones(2)}, gradients)
    assert torch.equal(residual["b"], torch.ones(2))
    for one in gradients:
        cosine = torch.cosine_similarity(residual["a"].flatten(), one["a"].flatten(), 0)
        assert float(cosine) == pytest.approx(0, abs=1e-4)
    rest = {"a": update["a"] + 7 * gradients[0]["a"] - gradients[1]["a"]}
    same = evening.without(evening(rest), gradients)
    assert torch.allclose(same["a"], residual["a"], atol=1e-3)


def test_a_sentence_that_pays_is_better_than_any_other() -> None:
    assert Grown(True, 1.0, (1,)) > Grown(False, 9.0, (2,)) > Grown(False, 8.0, (3,))


@pytest.mark.slow
@pytest.mark.parametrize("found", [0, 1])
def test_sentences_that_are_not_found_are_the_usual_ones(
    found: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpt2 = adapted("tiny-gpt2", 4, 20)
    seen, truth = gpt2.capture([3, 7], **STEP)
    known = Knowledge(local_steps=1, optimizer="adamw", num_examples=2, auxiliary=True)
    line = truth.inputs[0].tolist()
    monkeypatch.setattr(MatchedGrowth, "sentences", lambda self: [line][:found])
    job, rng = Job(auxiliary=lambda: truth), torch.Generator().manual_seed(0)
    (guess,) = Span().reconstruct([replace(seen, knowledge=known)], gpt2.task, [rng], job)
    assert len(guess.guess) == 2
    assert f"the update tells {found} of 2 sentences" in (guess.note or "")
    assert guess.confidence == ("guess", "guess")


@pytest.mark.slow
def test_a_step_of_adamw_tells_sentences() -> None:
    data = "film/enron-sentences"
    victim = hub("fedsim/llama-8k", data, "validation[:24]", lora_rank=16, max_length=12)
    rng = torch.Generator().manual_seed(0)
    for name, value in victim.sent.items():
        if is_second_factor(name):
            value.copy_(0.01 * torch.randn(value.shape, generator=rng))
    known = Knowledge(local_steps=1, optimizer="adamw", num_examples=1)
    exact = 0
    for row in range(6):
        seen, truth = victim.capture([row], **STEP)
        guess = run(victim, replace(seen, knowledge=known))
        if sentences(guess.guess) == sentences(truth):
            assert guess.confidence == ("consistent",)
            exact += 1
    assert exact >= 3


SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 30}


@pytest.mark.parametrize("tied", [False, True])
def test_weights_that_tell_next_words(tied: bool) -> None:
    options: dict[str, Any] = {**SIZES, "tie_word_embeddings": tied}
    llama = LlamaForCausalLM(LlamaConfig(intermediate_size=40, **options))
    gpt2 = GPT2LMHeadModel(GPT2Config(**options))
    assert next_word_weights(llama) == {f"model.layers.{i}.mlp.down_proj.weight" for i in range(2)}
    assert next_word_weights(gpt2) == {f"transformer.h.{i}.mlp.c_proj.weight" for i in range(2)}
    tables = "model.embed_tokens.weight", "transformer.wte.weight"
    heads = tables if tied else ("lm_head.weight",) * 2
    assert (head_weight(llama), head_weight(gpt2)) == heads


def test_work_counts_the_tokens_of_both_moved_copies() -> None:
    model = GPT2LMHeadModel(GPT2Config(**SIZES))
    update = {"transformer.h.0.mlp.c_fc.weight": torch.randn(16, 64)}
    ids, job = torch.tensor([[3, 5, 7], [3, 5, 9]]), Job()
    with job.limited(model, 1000):
        shift = DirectionalShift(model, update)
        shift.next_tokens(ids)
        assert job.done == 2 * ids.numel()
        shift.along([*ids])
        assert job.done == 4 * ids.numel()
        model(input_ids=ids)
        assert job.done == 5 * ids.numel()


def test_lines_are_scored_alike_alone_and_together() -> None:
    model = GPT2LMHeadModel(GPT2Config(**SIZES)).eval()
    shift = DirectionalShift(model, {"transformer.h.0.mlp.c_fc.weight": torch.randn(16, 64)})
    lines = [torch.tensor([3, 5, 7, 11, 9]), torch.tensor([3, 5]), torch.tensor([3, 8, 2])]
    for line, scores in zip(lines, shift.along(lines), strict=True):
        assert scores.shape == (len(line) - 1, 30)
        # Scores divide the small difference of two networks' logs, and its rounding with it.
        torch.testing.assert_close(scores, shift.along([line])[0], atol=5e-3, rtol=0)


@pytest.mark.parametrize("network", [GPT2LMHeadModel, LlamaForCausalLM])
def test_the_update_of_the_head_alone_tells_the_next_word(network: Any) -> None:
    torch.manual_seed(0)
    model = network(network.config_class(**SIZES))
    ids = torch.tensor([[3, 5, 7, 11, 9]])
    states = model.base_model(input_ids=ids).last_hidden_state[0].detach()
    head = 0.02 * torch.randn(30, 16)
    head[ids[0, 1:]] = -torch.linalg.pinv(states[:-1]).T
    plain, told = (DirectionalShift(model, {}, head=own).along([*ids])[0] for own in (None, head))
    assert (told - plain).argmax(-1).tolist() == ids[0, 1:].tolist()


@pytest.mark.slow
@pytest.mark.parametrize("model", ["fedsim/gpt2-8k", "fedsim/llama-8k"])
def test_steps_of_adamw_on_all_weights_tell_and_prove_each_sentence(model: str) -> None:
    victim = hub(model, "film/enron-sentences", "validation[:24]", max_length=12)
    steps: dict[str, Any] = {"learning_rate": 5e-5, "local_steps": 2, "batch_size": 1}
    seen, truth = victim.capture([1, 2], **{**STEP, **steps})
    granted: dict[str, Any] = {"training": FederationConfig().training, "defense": ()}
    known = Knowledge(optimizer="adamw", num_examples=2, train_mode=False, **steps, **granted)
    guess = run(victim, replace(seen, knowledge=known))
    assert sentences(guess.guess) == sentences(truth)
    assert guess.confidence == ("certified", "certified")


TRUE = [[1, 2, 3, 4, 5], [1, 6, 7, 8, 9, 10], [1, 11, 12, 13]]


class Bigrams:
    """Knows which word follows another in the true sentences."""

    def along(self, lines: list[torch.Tensor]) -> list[torch.Tensor]:
        table = torch.zeros(20, 20)
        for one in TRUE:
            table[one[:-1], one[1:]] = 4.0
        return [table[line[:-1]] for line in lines]


def exchanged(lines: list[list[int]], longest: int, job: Job | None = None) -> list[list[int]]:
    told = cast(DirectionalShift, Bigrams())
    tensors = [torch.tensor(x) for x in lines]
    return [line.tolist() for line in swap_suffixes(tensors, told, longest, job or Job())]


@pytest.mark.parametrize(
    "crossed",
    [
        TRUE,
        [[1, 2, 3, 8, 9, 10], [1, 6, 7, 4, 5], [1, 11, 12, 13]],
        [[1, 2, 3, 12, 13], [1, 6, 7, 4, 5], [1, 11, 8, 9, 10]],
    ],
)
def test_ends_return_to_their_sentences(crossed: list[list[int]]) -> None:
    before = copy.deepcopy(crossed)
    assert exchanged(crossed, 8) == TRUE
    assert crossed == before


def test_it_ends_when_the_time_is_up() -> None:
    crossed = [[1, 2, 3, 8, 9, 10], [1, 6, 7, 4, 5]]
    assert exchanged(crossed, 8) != crossed
    assert exchanged(crossed, 8, Job(deadline=0.0)) == crossed


def test_no_sentence_grows_beyond_the_longest() -> None:
    crossed = [[1, 2, 8, 9, 10], [1, 6, 7, 3, 4, 5]]
    assert exchanged(crossed, 6) != crossed
    assert all(len(line) <= 6 for line in exchanged(crossed, 6))
    assert exchanged([[1, 2, 3, 8, 9, 10], [1, 6, 7, 4, 5]], 5) == [
        [1, 2, 3, 8, 9, 10],
        [1, 6, 7, 4, 5],
    ]
