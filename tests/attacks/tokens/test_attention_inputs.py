"""Inputs behind the first attention from a table of words at places."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    DebertaV2Config,
    DistilBertConfig,
    DistilBertForSequenceClassification,
)
from transformers import DebertaV2ForSequenceClassification as Deberta

from attacks.base import Job
from attacks.tokens.attention_inputs import AttentionInputs
from attacks.tokens.first_layers import FirstLayers

LENGTH, SIZE = 7, {"vocab_size": 40, "max_position_embeddings": 16}


def bert() -> BertForSequenceClassification:
    return BertForSequenceClassification(
        BertConfig(
            hidden_size=24,
            num_hidden_layers=2,
            num_attention_heads=3,
            intermediate_size=48,
            initializer_range=0.5,
            **SIZE,
        )
    )


def distilbert() -> DistilBertForSequenceClassification:
    return DistilBertForSequenceClassification(
        DistilBertConfig(dim=24, n_layers=2, n_heads=3, hidden_dim=48, **SIZE)
    )


def tokens() -> list[Tensor]:
    return [torch.tensor([1]), *[torch.arange(2, 30)] * (LENGTH - 1)]


@pytest.mark.parametrize("make", [bert, distilbert])
def test_they_are_those_of_the_network(make: Callable[[], torch.nn.Module]) -> None:
    torch.manual_seed(0)
    layers = FirstLayers(make().eval(), [10, 20, 30], LENGTH)
    job = Job()
    table = AttentionInputs.of(layers, layers.contexts[0], tokens(), job)
    assert table is not None
    before, ids = job.done, torch.randint(2, 30, (5, LENGTH))
    ids[:, 0] = 1
    mask = torch.ones_like(ids)
    mask[2, 4:] = 0
    true = layers.of_sentences(layers.contexts[0], ids, mask)
    mine = table.inputs(ids, mask)
    assert torch.allclose(mine[mask > 0], true[mask > 0], atol=1e-5)
    assert job.done == before + ids.numel()


def test_there_are_none_of_another_layer_or_attention() -> None:
    torch.manual_seed(0)
    layers = FirstLayers(bert().eval(), [10, 20, 30], LENGTH)
    assert AttentionInputs.of(layers, layers.contexts[1], tokens(), Job()) is None
    config = DebertaV2Config(
        hidden_size=24,
        num_hidden_layers=2,
        num_attention_heads=3,
        intermediate_size=48,
        relative_attention=True,
        pos_att_type=["p2c", "c2p"],
        **SIZE,
    )
    relative = FirstLayers(Deberta(config).eval(), [10, 20, 30], LENGTH)
    assert AttentionInputs.of(relative, relative.contexts[0], tokens(), Job()) is None
