"""The language model of Learning To Invert against PyTorch's own encoder."""

from typing import Any

import pytest
import torch
from torch import nn

from fedsim.config.cell import TaskConfig
from fedsim.data.rows import load_rows
from fedsim.errors import ConfigError
from fedsim.models import TEXT_MODELS, transformer
from fedsim.models.embeddings import Embeddings, embedding_names
from fedsim.tasks import initial_weights, load_task, make_task, save_task
from fedsim.tasks.base import load_state, state
from fedsim.types import Batch

SMALL = {
    "model_type": "transformer3",
    "vocab_size": 40,
    "hidden_size": 16,
    "num_attention_heads": 4,
    "intermediate_size": 24,
    "max_position_embeddings": 12,
}


def make(**sizes: int) -> Any:
    return transformer.build({**SMALL, **sizes}, "language-modelling", seed=1)


def batch(rows: int = 3, tokens: int = 7) -> Batch:
    ids = torch.randint(40, (rows, tokens), generator=torch.Generator().manual_seed(0))
    return Batch(ids, ids, torch.ones_like(ids))


def test_sizes_of_the_paper() -> None:
    source = str(TEXT_MODELS["transformer3"])
    architecture = transformer.architecture(source, num_classes=0)
    network = transformer.build(architecture | {"vocab_size": 50257}, "language-modelling")
    counts = {name: parameter.numel() for name, parameter in network.named_parameters()}
    assert sum(n for name, n in counts.items() if ".h." in name) == 1_002_528
    read = {name for name in counts if "wte" not in name and "lm_head" not in name}
    assert sum(counts[name] for name in read) == 1_100_832
    assert counts["transformer.wte.weight"] == counts["lm_head.weight"] == 50257 * 96


def test_it_is_the_encoder_of_pytorch() -> None:
    network = make()
    layer = nn.TransformerEncoderLayer(16, 4, 24, dropout=0.0, batch_first=True)
    oracle = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False).eval()
    names = {
        "self_attn.in_proj_": "attention.qkv.",
        "self_attn.out_proj.": "attention.out.",
        "linear1.": "inner.",
        "linear2.": "outer.",
        "norm1.": "ln_1.",
        "norm2.": "ln_2.",
    }
    weights = state(network.transformer.h)
    load_state(
        oracle,
        {
            f"layers.{i}.{theirs}{part}": weights[f"{i}.{ours}{part}"]
            for i in range(3)
            for theirs, ours in names.items()
            for part in ("weight", "bias")
        },
    )
    ids = batch().inputs
    words = network.transformer.wte(ids) + network.transformer.wpe.weight[:7]
    causal = nn.Transformer.generate_square_subsequent_mask(7)
    torch.testing.assert_close(
        network(ids).logits, network.lm_head(oracle(words, mask=causal, is_causal=True))
    )


def test_a_token_sees_those_before_it_only() -> None:
    network, ids = make(), batch().inputs
    changed = ids.clone()
    changed[:, 4] = (ids[:, 4] + 1) % 40
    before, after = network(ids).logits, network(changed).logits
    assert torch.equal(before[:, :4], after[:, :4])
    assert not torch.isclose(before[:, 4:], after[:, 4:]).all(2).any()


def test_padding_a_cache_and_embeddings_change_nothing() -> None:
    from transformers import DynamicCache

    network, ids = make(), batch().inputs
    expected = network(ids).logits
    left, right = nn.functional.pad(ids, (0, 3), value=9), torch.ones(3, 10, dtype=torch.int64)
    right[:, 7:] = 0
    torch.testing.assert_close(network(left, attention_mask=right).logits[:, :7], expected)
    words = network.get_input_embeddings()(ids)
    torch.testing.assert_close(network(inputs_embeds=words).logits, expected)
    cache = DynamicCache()
    parts = [network(part, past_key_values=cache).logits for part in ids.split([4, 1, 2], dim=1)]
    torch.testing.assert_close(torch.cat(parts, 1), expected)
    hidden = torch.ones(3, 7, dtype=torch.int64)
    hidden[:, 2] = 0
    assert not torch.allclose(network(ids, attention_mask=hidden).logits[:, 3:], expected[:, 3:])


def test_the_word_table_is_a_multiple_of_the_decoder() -> None:
    network = make(hidden_size=64)
    words, decoder = network.get_input_embeddings().weight, network.get_output_embeddings().weight
    assert words is not decoder
    torch.testing.assert_close(words, 8 * decoder)
    assert decoder.abs().max().item() == pytest.approx(0.1, abs=1e-3)
    assert embedding_names(network) == Embeddings(
        "transformer.wte.weight", "transformer.wpe.weight"
    )
    blocks = [state(block) for block in network.transformer.h]
    assert not torch.equal(blocks[0]["inner.weight"], blocks[1]["inner.weight"])


def test_single_gradients_by_vmap() -> None:
    rows = load_rows("sentences", "train[:3]", modality="text")
    task = make_task(TaskConfig(model="transformer3", dataset="sentences", max_length=12), rows)
    network, encoded = task.build(), task.encode(rows)
    parameters = {name: value.detach() for name, value in network.named_parameters()}

    def loss(own: dict[str, torch.Tensor], *parts: torch.Tensor) -> torch.Tensor:
        ids, labels, mask = (part[None] for part in parts)
        return task.functional_loss(network, own, Batch(ids, labels, mask))

    assert encoded.mask is not None
    every = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0, 0))(
        parameters, encoded.inputs, encoded.labels, encoded.mask
    )
    for i in range(3):
        one = task.gradient(network, encoded[i])
        for name, value in one.items():
            torch.testing.assert_close(every[name][i], value, rtol=1e-3, atol=1e-5)


def test_a_tokenizer_sets_the_size_of_the_tables(tmp_path: Any) -> None:
    rows = load_rows("sentences", "train[:3]", modality="text")
    config = TaskConfig(model="transformer3", dataset="sentences", max_length=12)
    other = config.model_copy(update={"tokenizer": "tiny-bert"})
    for chosen, size in ((config, 2000), (other, 1900)):
        task = make_task(chosen, rows)
        weights = initial_weights(task, chosen, 0)
        assert len(weights["transformer.wte.weight"]) == len(weights["lm_head.bias"]) == size
        save_task(task, tmp_path)
        again = load_task(tmp_path)
        assert torch.equal(again.encode(rows).inputs, task.encode(rows).inputs)
        load_state(again.build(), weights)
    assert task.examples(task.encode(rows)).words[0].islower()


def test_pretrained_weights_keep_their_tokenizer() -> None:
    rows = load_rows("sentences", "train[:3]", modality="text")
    config = TaskConfig(model="tiny-gpt2", dataset="sentences", tokenizer="tiny-bert")
    task = make_task(config, rows)
    assert task.spec.architecture["vocab_size"] == 1900
    elsewhere = config.model_copy(update={"model": "some/where"})
    with pytest.raises(ConfigError) as error:
        initial_weights(task, elsewhere, 0)
    assert str(error.value) == (
        "task.tokenizer: the pretrained weights of 'some/where' belong to its own tokenizer, not "
        "to 'tiny-bert'. Leave tokenizer out, or set weights = 'random'."
    )
