"""The prior's loss against a naive one, and each prior that cannot be used is named."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from attacks.texts import language_prior
from attacks.texts.language_prior import LanguagePrior, load_prior
from fedsim.config.cell import TaskConfig
from fedsim.data.rows import load_rows
from fedsim.errors import CannotAttack
from fedsim.models import TEXT_MODELS, transformer
from fedsim.tasks import make_task
from fedsim.tasks.text import TextTask
from fedsim.types import Rows
from tests.attacks.texts.cases import GPT2

CPU = torch.device("cpu")
ROWS = Rows(("The boat left at dawn.", "Rain."), torch.tensor([0, 1]), (0, 1))
MINILM, SMALL = "sentence-transformers/all-MiniLM-L6-v2", "fedsim/prior-bert-vocab"
FAMILIES = {
    "gpt2": GPT2,
    "llama": {
        "model_type": "llama",
        "vocab_size": 1900,
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "max_position_embeddings": 32,
        "initializer_range": 0.5,
    },
    "phi, whose head has a bias": {
        "model_type": "phi",
        "vocab_size": 1900,
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "max_position_embeddings": 32,
        "initializer_range": 0.5,
    },
}


def task_of(model: str, max_length: int = 24) -> TextTask:
    config = {"model": model, "dataset": "here", "max_length": max_length}
    task = make_task(TaskConfig.model_validate(config), ROWS)
    assert isinstance(task, TextTask)
    return task


@pytest.fixture(scope="module")
def tiny() -> TextTask:
    return task_of("tiny-bert")


@pytest.fixture
def save(tmp_path: Path, tiny: TextTask) -> Callable[..., Path]:
    """``save(GPT2, n_embd=8)``: a random model with the tokenizer of tiny-bert, in a new folder."""

    def write(architecture: dict[str, Any], body: bool = False, **changes: object) -> Path:
        folder = tmp_path / f"prior-{len(list(tmp_path.iterdir()))}"
        network: Any = transformer.build(architecture | changes, "language-modelling", 3)
        (network.base_model if body else network).save_pretrained(folder)
        tiny.tokenizer.save_pretrained(str(folder))
        return folder

    return write


def naive(network: Any, ids: Tensor, mask: Tensor) -> Tensor:
    """Row by row and token by token, each from the tokens before it alone."""
    losses = []
    for line, kept in zip(ids, mask, strict=True):
        tokens = line[kept.bool()].tolist()
        terms = [torch.zeros(())] if len(tokens) == 1 else []
        for place in range(1, len(tokens)):
            logits = network(input_ids=torch.tensor([tokens[:place]])).logits[0, -1]
            terms.append(-logits.log_softmax(0)[tokens[place]])
        losses.append(torch.stack(terms).mean())
    return torch.stack(losses).detach()


def candidates() -> tuple[Tensor, Tensor]:
    """Orders of two sentences that begin alike, one of them twice, and a lone token; padded."""
    lines = [
        [2, 40, 50, 60, 70, 3],
        [2, 40, 50, 70, 60, 3],
        [2, 40, 50, 60, 70, 3],
        [2, 70, 40, 50, 60, 3],
        [2, 40, 50, 3],
        [2, 0, 40, 3],
        [2],
    ]
    ids = torch.tensor([line + [0] * (6 - len(line)) for line in lines])
    lengths = torch.tensor([len(line) for line in lines])
    return ids, (torch.arange(6) < lengths[:, None]).long()


@pytest.mark.parametrize("family", list(FAMILIES))
def test_the_loss_is_that_of_each_token_after_its_past(
    family: str, save: Callable[..., Path], tiny: TextTask
) -> None:
    prior = load_prior(str(save(FAMILIES[family])), tiny, CPU)
    bias = prior.network.get_output_embeddings().bias
    assert (bias is not None) == family.startswith("phi")
    if bias is not None:
        bias.normal_(generator=torch.Generator().manual_seed(0))
    ids, mask = candidates()
    losses = prior.loss(ids, mask)
    assert losses.dtype == torch.float32
    assert not losses.requires_grad
    torch.testing.assert_close(losses, naive(prior.network, ids, mask), rtol=1e-4, atol=1e-4)
    assert losses[0] == losses[2]
    assert losses[-1] == 0
    assert losses[:6].unique().numel() == 5
    after = prior.following(ids[:1])[0, :-1]
    torch.testing.assert_close(-after.gather(1, ids[0, 1:, None]).mean(), losses[0])


def test_neither_padding_nor_company_nor_chunks_change_the_loss(
    save: Callable[..., Path], tiny: TextTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    prior = load_prior(str(save(GPT2)), tiny, CPU)
    ids, mask = candidates()
    losses = prior.loss(ids, mask)
    rest = torch.randint(1900, (7, 3), generator=torch.Generator().manual_seed(0))
    wider = torch.cat([ids.where(mask == 1, 9), rest], 1)
    torch.testing.assert_close(
        prior.loss(wider, torch.cat([mask, torch.zeros_like(rest)], 1)), losses
    )
    alone = [prior.loss(ids[i : i + 1], mask[i : i + 1]) for i in range(len(ids))]
    torch.testing.assert_close(torch.cat(alone), losses)
    monkeypatch.setattr(language_prior, "_CPU_LOGITS", 1)
    monkeypatch.setattr(language_prior, "_HIDDEN", 2 * 6 * 16)
    torch.testing.assert_close(prior.loss(ids, mask), losses)


def test_weights_are_frozen_float32_and_shared(save: Callable[..., Path], tiny: TextTask) -> None:
    folder = save(GPT2)
    prior, again = (load_prior(str(folder), tiny, CPU) for _ in range(2))
    assert prior.network is again.network
    assert prior.name == str(folder)
    assert not prior.network.training
    assert {(p.dtype, p.requires_grad) for p in prior.network.parameters()} == {
        (torch.float32, False)
    }


def test_half_precision_is_widened(tmp_path: Path, tiny: TextTask) -> None:
    transformer.build(GPT2, "language-modelling").half().save_pretrained(tmp_path)  # type: ignore[operator]
    tiny.tokenizer.save_pretrained(str(tmp_path))
    network = load_prior(str(tmp_path), tiny, CPU).network
    assert {parameter.dtype for parameter in network.parameters()} == {torch.float32}


def refusal(name: Path | str, task: TextTask) -> str:
    with pytest.raises(CannotAttack) as error:
        load_prior(str(name), task, CPU)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_another_vocabulary_is_refused(save: Callable[..., Path], tiny: TextTask) -> None:
    folder = save(GPT2)
    other = transformer.tokenizer(str(TEXT_MODELS["tiny-gpt2"]))
    other.save_pretrained(str(folder))
    assert refusal(folder, tiny) == (
        f"prior: the vocabulary of {str(folder)!r} (2000 tokens) is not that of 'tiny-bert' "
        "(1900): token 0 is '<|endoftext|>' in the one and '[PAD]' in the other. Train a prior "
        "that matches with fedsim prior EXPERIMENT."
    )


def test_one_differing_token_is_named(save: Callable[..., Path], tiny: TextTask) -> None:
    folder = save(GPT2)
    table = json.loads((folder / "tokenizer.json").read_text())
    vocabulary = table["model"]["vocab"]
    (word,) = (word for word, number in vocabulary.items() if number == 700)
    (other,) = (word for word, number in vocabulary.items() if number == 800)
    vocabulary[word], vocabulary[other] = 800, 700
    (folder / "tokenizer.json").write_text(json.dumps(table))
    fault = f"token 700 is {other!r} in the one and {word!r} in the other."
    assert fault in refusal(folder, tiny)


def test_fewer_positions_or_rows_than_the_task_are_refused(
    save: Callable[..., Path], tiny: TextTask
) -> None:
    assert "takes at most 20 tokens, and task.max_length is 24." in refusal(
        save(GPT2, n_positions=20), tiny
    )
    assert "predicts 1000 tokens, and its tokenizer has 1900." in refusal(
        save(GPT2, vocab_size=1000), tiny
    )


def test_missing_folders_are_named(
    tmp_path: Path, tiny: TextTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "gone"
    assert refusal(gone, tiny) == (
        f"prior: {gone}: there is no such folder. Correct the path. "
        "fedsim prior EXPERIMENT trains one."
    )
    import huggingface_hub

    def refuse(*_: object, **__: object) -> None:
        raise ConnectionError("no network")

    monkeypatch.delenv("FEDSIM_HUB", raising=False)
    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", refuse)
    message = refusal("priors/gone", tiny)
    assert message.startswith("prior: 'priors/gone' is neither a built-in")
    assert message.endswith("fedsim prior EXPERIMENT trains one.")
    monkeypatch.setenv("FEDSIM_HUB", str(gone))
    assert f"prior: FEDSIM_HUB: {str(gone)!r} is not a folder." in refusal("a/b", tiny)


def test_broken_folders_are_named(save: Callable[..., Path], tiny: TextTask) -> None:
    assert "safetensors" in refusal("tiny-bert", tiny)  # it comes without weights
    folder = save(GPT2)
    for name, content, fault in (
        ("tokenizer.json", None, "no usable tokenizer"),
        ("model.safetensors", b"cut", "cannot be loaded as a causal language model ("),
        ("model.safetensors", None, "cannot be loaded as a causal language model ("),
        ("config.json", b"{", "names no model_type"),
    ):
        broken = folder.with_name(f"broken-{name}-{content is None}")
        shutil.copytree(folder, broken)
        (broken / name).unlink()
        if content is not None:
            (broken / name).write_bytes(content)
        message = refusal(broken, tiny)
        assert message.startswith("prior: ")
        assert str(broken) in message
        assert fault in message


def test_models_that_predict_no_next_token_are_refused(
    save: Callable[..., Path], tiny: TextTask
) -> None:
    headless = save(GPT2, body=True, tie_word_embeddings=False)
    message = refusal(headless, tiny)
    assert f"prior: {str(headless)!r} has no weights for 'lm_head.weight' (1 in all)." in message
    bert = json.loads((TEXT_MODELS["tiny-bert"] / "config.json").read_text())
    small = {"hidden_size": 16, "intermediate_size": 16, "initializer_range": 0.5}
    assert "looks at the tokens that it should predict." in refusal(save(bert | small), tiny)
    capped = FAMILIES["llama"] | {"model_type": "gemma2", "final_logit_softcapping": 1.0}
    capped |= {"head_dim": 8, "num_key_value_heads": 2}
    assert "are not linear in its last hidden states." in refusal(save(capped), tiny)


@pytest.mark.slow
@pytest.mark.skipif("FEDSIM_HUB" not in os.environ, reason="FEDSIM_HUB names no folder of models")
def test_the_small_prior_prefers_the_order_of_cola_sentences() -> None:
    task = task_of(MINILM, max_length=32)
    prior = load_prior(SMALL, task, CPU)
    assert isinstance(prior, LanguagePrior)
    rows = load_rows("nyu-mll/glue:cola", "validation[:80]", modality="text")
    good = [text for text, label in zip(rows.inputs, rows.labels, strict=True) if label == 1]
    rng = torch.Generator().manual_seed(0)
    preferred = []
    for line in task.tokens(good):
        inner = torch.tensor(line[1:-1])
        orders = [inner] + [inner[torch.randperm(len(inner), generator=rng)] for _ in range(3)]
        ends = torch.tensor([line[:1]]), torch.tensor([line[-1:]])
        ids = torch.stack([torch.cat([ends[0][0], order, ends[1][0]]) for order in orders])
        losses = prior.loss(ids, torch.ones_like(ids))
        preferred.append(bool((losses[0] <= losses[1:]).all()))
    assert len(preferred) > 40
    assert sum(preferred) / len(preferred) > 0.9
    english = task.tokens(["we saw two black dogs near the river."])
    losses = prior.loss(torch.tensor(english), torch.ones(1, len(english[0]), dtype=torch.int64))
    assert 3 < losses.item() < 7
