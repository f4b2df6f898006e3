import pytest
import torch
from torch import nn
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
)

from fedsim.defenses.freeze_embeddings import FreezeEmbeddings
from fedsim.errors import ConfigError

WORD, POSITION = (
    "bert.embeddings.word_embeddings.weight",
    "bert.embeddings.position_embeddings.weight",
)


def bert() -> nn.Module:
    model: nn.Module = BertForSequenceClassification(
        BertConfig(
            vocab_size=20, hidden_size=8, num_hidden_layers=1, num_attention_heads=2,
            intermediate_size=8, max_position_embeddings=8,
        )
    )  # fmt: skip
    return model


def frozen(model: nn.Module) -> set[str]:
    return {name for name, value in model.named_parameters() if not value.requires_grad}


@pytest.mark.parametrize(
    ("word", "position", "expected"),
    [(True, False, {WORD}), (False, True, {POSITION}), (True, True, {WORD, POSITION})],
)
def test_freezes_the_chosen_tables_and_nothing_else(
    word: bool, position: bool, expected: set[str]
) -> None:
    model = bert()
    FreezeEmbeddings(word=word, position=position).on_model(model)
    assert frozen(model) == expected


def test_the_tied_head_of_gpt2_is_frozen_with_its_words() -> None:
    model = GPT2LMHeadModel(GPT2Config(vocab_size=20, n_embd=8, n_layer=1, n_head=2, n_positions=8))
    FreezeEmbeddings().on_model(model)
    assert frozen(model) == {"transformer.wte.weight"}
    assert model.lm_head.weight.requires_grad is False


def test_an_untied_head_is_frozen_with_its_bias() -> None:
    config = BertConfig(
        vocab_size=20, hidden_size=8, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=8, max_position_embeddings=8, tie_word_embeddings=False,
    )  # fmt: skip
    model = BertForMaskedLM(config)
    FreezeEmbeddings(head=True).on_model(model)
    decoder = model.get_output_embeddings()
    assert frozen(model) >= {WORD, "cls.predictions.decoder.weight"}
    assert not decoder.weight.requires_grad
    assert not decoder.bias.requires_grad


def test_all_biases_are_frozen_and_no_matrix() -> None:
    model = bert()
    FreezeEmbeddings(word=False, bias=True).on_model(model)
    assert frozen(model) == {name for name, value in model.named_parameters() if "bias" in name}
    assert {len(model.get_parameter(name).shape) for name in frozen(model)} == {1}


def test_a_classifier_has_no_head_over_tokens() -> None:
    with pytest.raises(ConfigError, match="BertForSequenceClassification does not predict tokens"):
        FreezeEmbeddings(head=True).on_model(bert())


@pytest.mark.parametrize(
    ("word", "position", "kind"), [(True, False, "word"), (False, True, "position")]
)
def test_a_model_without_the_table_is_refused(word: bool, position: bool, kind: str) -> None:
    with pytest.raises(ConfigError) as caught:
        FreezeEmbeddings(word=word, position=position).on_model(nn.Sequential(nn.Linear(2, 2)))
    assert str(caught.value) == (
        f"freeze_embeddings.{kind}: Sequential has no {kind} embeddings. "
        "Choose a text model with such a table, or leave this defense out."
    )


def test_freezing_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="word, position, head and bias are all false"):
        FreezeEmbeddings(word=False)


def test_update_is_untouched() -> None:
    update = {"w": torch.ones(2)}
    assert FreezeEmbeddings().on_update(update, torch.Generator()) is update
    assert FreezeEmbeddings().surrogate(update) is update
    assert not FreezeEmbeddings().per_example
