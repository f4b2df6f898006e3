"""The small language model of Learning To Invert (Wu et al. 2022), as a model of transformers.

Modules are called as in GPT-2 where they have a counterpart there.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast

_WORDS = 0.1  # the decoder's weights are drawn from -0.1 to 0.1


class PostNormConfig(PretrainedConfig):  # type: ignore[misc]
    """The sizes; the reference's vocabulary is GPT-2's, of 50257."""

    model_type = "transformer3"

    vocab_size: int = 2000
    hidden_size: int = 96
    num_hidden_layers: int = 3
    num_attention_heads: int = 8
    intermediate_size: int = 1536
    max_position_embeddings: int = 1024
    tie_word_embeddings: bool = False


class Attention(nn.Module):
    """Multi-head self-attention; query, key and value come from one linear layer."""

    def __init__(self, width: int, heads: int, layer: int) -> None:
        super().__init__()
        self.heads, self.layer = heads, layer
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        # As in torch.nn.MultiheadAttention.
        nn.init.xavier_uniform_(self.qkv.weight)
        nn.init.zeros_(self.qkv.bias)
        nn.init.zeros_(self.out.bias)

    def forward(self, x: Tensor, mask: Tensor, cache: Any = None) -> Tensor:  # noqa: ANN401
        """``(batch, token, width)``; the mask is added to the logits."""
        split = self.qkv(x).unflatten(-1, (3, self.heads, -1)).transpose(1, 3)
        query, key, value = split.unbind(2)
        if cache is not None:
            key, value = cache.update(key, value, self.layer)
        logits = query @ key.mT / query.shape[-1] ** 0.5
        mixed: Tensor = self.out(((logits + mask).softmax(-1) @ value).transpose(1, 2).flatten(2))
        return mixed


class PostNormBlock(nn.Module):
    """Attention and a ReLU network of one hidden layer, each normalised after it was added."""

    def __init__(self, config: PostNormConfig, layer: int) -> None:
        super().__init__()
        width, hidden = config.hidden_size, config.intermediate_size
        self.attention = Attention(width, config.num_attention_heads, layer)
        self.ln_1 = nn.LayerNorm(width)
        self.inner, self.outer = nn.Linear(width, hidden), nn.Linear(hidden, width)
        self.ln_2 = nn.LayerNorm(width)

    def forward(self, x: Tensor, mask: Tensor, cache: Any = None) -> Tensor:  # noqa: ANN401
        """``(batch, token, width)``."""
        x = self.ln_1(x + self.attention(x, mask, cache))
        normed: Tensor = self.ln_2(x + self.outer(self.inner(x).relu()))
        return normed


class PostNormModel(PreTrainedModel):  # type: ignore[misc]
    """Word and position tables, and the blocks."""

    config_class = PostNormConfig
    base_model_prefix = "transformer"

    def __init__(self, config: PostNormConfig) -> None:
        super().__init__(config)
        self.wte = nn.Embedding(config.vocab_size, config.hidden_size)
        self.wpe = nn.Embedding(config.max_position_embeddings, config.hidden_size)
        self.h = nn.ModuleList(PostNormBlock(config, i) for i in range(config.num_hidden_layers))
        self.post_init()

    def get_input_embeddings(self) -> nn.Embedding:
        """The word table."""
        return self.wte

    def _init_weights(self, module: nn.Module) -> None:
        """Nothing: all layers have drawn their weights when they were made."""

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        past_key_values: Any = None,  # noqa: ANN401
        inputs_embeds: Tensor | None = None,
        use_cache: bool = False,
    ) -> BaseModelOutputWithPast:
        """Last hidden states ``(batch, token, width)``.

        Args:
            input_ids: ``(batch, token)``.
            attention_mask: 1 where a token is real ``(batch, token)``, or what is added to the
                logits of attention, broadcast to ``(batch, head, token, token)``.
            past_key_values: a cache of transformers, with the tokens before.
            inputs_embeds: word embeddings instead of ids.
            use_cache: says nothing: a cache is used where one is given.
        """
        del use_cache
        words = self.wte(input_ids) if inputs_embeds is None else inputs_embeds
        past = 0 if past_key_values is None else past_key_values.get_seq_length()
        places = torch.arange(past + words.shape[1], device=words.device)
        mask = attention_mask
        if mask is None or mask.dim() == 2:
            sees = places <= places[past:, None]
            if mask is not None:
                sees = sees & mask[:, None, None].bool()
            mask = torch.zeros_like(sees, dtype=words.dtype)
            mask = mask.masked_fill(~sees, torch.finfo(words.dtype).min)
        x = words + self.wpe(places[None, past:])
        for block in self.h:
            x = block(x, mask, past_key_values)
        return BaseModelOutputWithPast(last_hidden_state=x, past_key_values=past_key_values)


class PostNormLM(PreTrainedModel):  # type: ignore[misc]
    """The blocks and a decoder with a bias, which is not tied to the word table.

    Three post-norm layers (Vaswani et al. 2017) without dropout, 1,002,528 weights; with the 1024
    positions 1,100,832, which is what Learning To Invert reads: it leaves out the word table and
    the decoder. Its reference, the ``transformer3`` of breaching, multiplies the word table by
    ``sqrt(width)`` on the way in and gives the decoder the same values. Here that factor is in the
    table, so that word and position rows get the same gradient, as in BERT and GPT-2. We differ in
    two more places: a token sees those before it only, while the reference never turns its mask on
    and predicts tokens that it sees; and the layers are drawn one by one, not copied from one.
    """

    config_class = PostNormConfig
    base_model_prefix = "transformer"

    def __init__(self, config: PostNormConfig) -> None:
        super().__init__(config)
        self.transformer = PostNormModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size)
        with torch.no_grad():
            words = self.lm_head.weight.uniform_(-_WORDS, _WORDS)
            self.transformer.wte.weight.copy_(config.hidden_size**0.5 * words)
        self.post_init()

    def get_input_embeddings(self) -> nn.Embedding:
        """The word table."""
        return self.transformer.wte

    def get_output_embeddings(self) -> nn.Linear:
        """The decoder."""
        return self.lm_head

    def _init_weights(self, module: nn.Module) -> None:
        """Nothing: all layers have drawn their weights when they were made."""

    def forward(self, input_ids: Tensor | None = None, **options: Any) -> CausalLMOutputWithPast:  # noqa: ANN401
        """Logits ``(batch, token, vocabulary)``; options as the body's."""
        body = self.transformer(input_ids, **options)
        logits = self.lm_head(body.last_hidden_state)
        return CausalLMOutputWithPast(logits=logits, past_key_values=body.past_key_values)


def register() -> None:
    """Make ``transformer3`` known to transformers."""
    AutoConfig.register(PostNormConfig.model_type, PostNormConfig, exist_ok=True)
    AutoModelForCausalLM.register(PostNormConfig, PostNormLM, exist_ok=True)
