"""The words nearest to a span at every position, by matrix products instead of runs."""

import pytest
import torch
from transformers import BertConfig, BertModel, GPT2Config, GPT2LMHeadModel

from attacks.tokens.first_layers import FirstLayers
from attacks.tokens.subspace import Subspace, span
from attacks.tokens.summed_inputs import nearest_words

POSITIONS, WORDS, WIDTH = 7, 90, 24


def networks() -> list[FirstLayers]:
    """A causal model that normalises in each block, and one that normalises embeddings."""
    torch.manual_seed(3)
    gpt2 = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=WORDS,
            n_embd=WIDTH,
            n_layer=2,
            n_head=2,
            n_positions=POSITIONS,
            bos_token_id=0,
            eos_token_id=0,
        )
    )
    bert = BertModel(
        BertConfig(
            vocab_size=WORDS, hidden_size=WIDTH, num_hidden_layers=2, num_attention_heads=2,
            intermediate_size=32, max_position_embeddings=POSITIONS,
        )
    )  # fmt: skip
    for network in (gpt2, bert):
        for parameter in network.parameters():
            torch.nn.init.normal_(parameter, mean=0.3, std=0.5)
    return [FirstLayers(network.eval(), [7, 8, 9], POSITIONS) for network in (gpt2, bert)]


@pytest.mark.parametrize("tokens", [3, 19])
def test_no_nearer_word_is_left_out(tokens: int) -> None:
    for layers in networks():
        words = torch.arange(1, WORDS)
        true = [layers.of_tokens(words[[4 * at]], at % POSITIONS)[0] for at in range(tokens)]
        slopes = torch.randn(tokens, 3 * WIDTH, dtype=torch.float64)
        subspace = span(torch.stack(true, 1).double() @ slopes)
        assert subspace.rank == tokens
        for seen in (subspace, Subspace(subspace.basis, subspace.most)):
            near = nearest_words(layers, seen, words, POSITIONS, 10)
            assert near is not None
            for position in range(POSITIONS):
                least = seen.distance(layers.of_tokens(words, position)).sort().values[:10]
                own = seen.distance(layers.of_tokens(near[position], position))
                torch.testing.assert_close(own, least, atol=2e-3, rtol=0)
                assert position >= tokens or words[4 * position] in near[position]


def test_inputs_that_are_no_sums_are_not_swept() -> None:
    layers, _ = networks()
    twisted = layers.network.get_submodule("transformer.drop")
    twisted.register_forward_hook(lambda _m, _a, out: out * out.square().sum(-1, keepdim=True))
    subspace = Subspace(torch.linalg.qr(torch.randn(WIDTH, 3, dtype=torch.float64)).Q, WIDTH)
    assert nearest_words(layers, subspace, torch.arange(1, WORDS), POSITIONS, 10) is None
