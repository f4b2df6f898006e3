import pytest

from fedsim.models import transformer
from fedsim.models.embeddings import Embeddings, embedding_names
from fedsim.models.mlp import MLP

SMALL = {"vocab_size": 40, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}


@pytest.mark.parametrize("family", ["bert", "roberta", "electra"])
def test_bert_types(family: str) -> None:
    network = transformer.build(
        {"model_type": family, "intermediate_size": 8, "pad_token_id": 0, **SMALL},
        "text-classification",
    )
    assert embedding_names(network) == Embeddings(
        f"{family}.embeddings.word_embeddings.weight",
        f"{family}.embeddings.position_embeddings.weight",
    )


def test_distilbert() -> None:
    network = transformer.build(
        {"model_type": "distilbert", "vocab_size": 40, "dim": 8, "n_layers": 1, "n_heads": 2},
        "text-classification",
    )
    names = embedding_names(network)
    assert names.position == "distilbert.embeddings.position_embeddings.weight"


def test_gpt2_names_the_tied_table_once() -> None:
    small = {"vocab_size": 40, "n_embd": 8, "n_layer": 1, "n_head": 2}
    ends = {"bos_token_id": 0, "eos_token_id": 0}
    network = transformer.build({"model_type": "gpt2", **small, **ends}, "language-modelling")
    names = embedding_names(network)
    assert names == Embeddings("transformer.wte.weight", "transformer.wpe.weight")
    assert names.word in dict(network.named_parameters())


def test_an_image_model_has_no_tables() -> None:
    network = MLP((1, 2, 2), 2, width=3, depth=1)
    assert embedding_names(network) == Embeddings(None, None)
